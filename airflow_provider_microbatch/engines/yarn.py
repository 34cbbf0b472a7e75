"""Finding and ending the YARN applications of an attempt, by tag.

YARN is asked by the command line of Hadoop's client: its classes among Spark's jars, or, where Spark is not beside
spark-submit or nothing says to it where YARN is, the ``yarn`` on PATH. So it can be asked wherever spark-submit can
submit, with the same configuration and the same credentials.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_microbatch.engines.environment import configuration_folder
from airflow_provider_microbatch.exceptions import EngineError

_TIMEOUT = 60
_ALIVE = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
_ENDED = "FINISHED,FAILED,KILLED"
_APPLICATION = re.compile(r"^\s*(application_\d+_\d+)\b", re.MULTILINE)
_FIELD = re.compile(r"^\t(State|Final-State|Diagnostics) : (.*?)(?=^\t[A-Z][\w -]* : |\Z)", re.MULTILINE | re.DOTALL)
_CLASS = "org.apache.hadoop.yarn.client.cli.ApplicationCLI"
_FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """How an application failed.

    :param application: its id.
    :param was_killed: whether somebody had YARN kill it.
    :param diagnostics: YARN's words.
    """

    application: str
    was_killed: bool
    diagnostics: str


@dataclass(frozen=True, kw_only=True)
class Yarn:
    """The YARN to which spark-submit submits.

    :param environment: the environment in which spark-submit is started.
    :param binary: name of the spark-submit program, as the connection has it.
    """

    environment: Mapping[str, str]
    binary: str

    def check(self) -> None:
        """:raises EngineError: if nothing here says where YARN is, so that spark-submit would refuse."""
        if not self._is_configured():
            raise EngineError(
                f"nothing says where YARN is: neither {' nor '.join(_FOLDERS)} is set. Set HADOOP_CONF_DIR to the "
                "folder of yarn-site.xml, in the environment of Airflow's processes or as env_vars of the operator."
            )

    def _is_configured(self) -> bool:
        if any(self.environment.get(name) for name in _FOLDERS):
            return True
        spark = configuration_folder(self.environment, binary=self.binary)
        return spark is not None and (spark / "spark-env.sh").is_file()

    def applications(self, tag: str) -> list[str]:
        """Ids of the applications with ``tag`` that have not ended.

        :raises EngineError: if YARN cannot be asked from here.
        """
        return _APPLICATION.findall(self._ask("-list", "-appTags", tag, "-appStates", _ALIVE))

    def kill(self, tag: str, *, known: str | None = None) -> bool:
        """Kill the applications with ``tag``; True if there were any.

        :param known: the id of the one that runs, if the caller knows it: a task that is told to stop has no time for a
            call that looks it up.
        :raises EngineError: if YARN cannot be asked from here.
        """
        found = [known] if known else self.applications(tag)
        for application in found:
            self._ask("-kill", application)
        return bool(found)

    def failure(self, tag: str) -> Failure | None:
        """How the application with ``tag`` failed, if one has.

        :raises EngineError: if YARN cannot be asked from here.
        """
        for application in _APPLICATION.findall(self._ask("-list", "-appTags", tag, "-appStates", _ENDED)):
            told = {name: value.strip() for name, value in _FIELD.findall(self._ask("-status", application))}
            if told.get("Final-State") != "SUCCEEDED":
                return Failure(
                    application=application,
                    was_killed=told.get("State") == "KILLED",
                    diagnostics=told.get("Diagnostics", ""),
                )
        return None

    def _ask(self, *arguments: str) -> str:
        command = [*self._program(), "application", *arguments]
        told = f"yarn application {' '.join(arguments)}"
        try:
            done = subprocess.run(
                command,
                env={"JDK_JAVA_OPTIONS": _QUICK, **self.environment},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EngineError(f"{told}: {error}") from error
        if done.returncode != 0:
            raise EngineError(f"{told} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def _program(self) -> list[str]:
        path = self.environment.get("PATH")
        submit = shutil.which(self.binary, path=path)
        spark_class = None if submit is None else shutil.which("spark-class", path=str(Path(submit).parent))
        if spark_class is not None and self._is_configured():
            return [spark_class, _CLASS]
        # Last: it may be Node's package manager, which has the same name.
        yarn = shutil.which("yarn", path=path)
        if yarn is not None:
            return [yarn]
        self.check()
        raise EngineError(
            "YARN cannot be asked: neither, beside spark-submit, 'spark-class' nor 'yarn' is here. Install Spark (pip "
            "install pyspark), or Hadoop's client."
        )
