"""Checks of this machine before spark-submit is called, without importing PySpark."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from airflow_provider_microbatch.exceptions import EngineError, EnvironmentMismatchError

SPARK_SUBMIT = "spark-submit"

OLDEST, NEWEST = "4.0.0", "4.1.3"
"""Oldest and newest version of pyspark and pyspark-client that this package's requirements allow."""


def check_versions() -> None:
    """Check that ``pyspark`` and ``pyspark-client`` have the same version: they install into the same folder, and no
    installer warns when their versions differ.

    :raises EnvironmentMismatchError: if the versions differ; the message has the command that mends the environment.
    """
    full, client = _version("pyspark"), _version("pyspark-client")
    if full is None or client is None or full == client:
        return
    raise EnvironmentMismatchError(
        f"pyspark {full} and pyspark-client {client} are installed into one folder and have overwritten each other in "
        f"part (the apache-spark provider requires the client). Mend it with: {_reinstall(_common_version(client))}"
    )


def _common_version(client: str) -> str:
    """A version that both packages have: each version of the client exists as pyspark too, but not the other way round
    (4.0.5, 4.1.4, 4.2.1 and 4.3.0 have no client)."""
    return client if _numbers(OLDEST) <= _numbers(client) <= _numbers(NEWEST) else NEWEST


def _numbers(version: str) -> list[int]:
    return [int(part) if part.isdigit() else 0 for part in version.split(".")]


def _reinstall(version: str) -> str:
    """The command that reinstalls both packages in this very environment. Without ``--no-deps`` an installer would also
    bring the newest version of each dependency, beyond the limits of other installed packages, such as pandas 3."""
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "install", "--force-reinstall"]
    else:  # as uv makes its environments
        command = ["uv", "pip", "install", "--python", sys.executable, "--reinstall"]
    return shlex.join([*command, "--no-deps", f"pyspark=={version}", f"pyspark-client=={version}"])


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_java(environment: Mapping[str, str]) -> None:
    """:raises EngineError: if spark-submit would find no Java."""
    home = environment.get("JAVA_HOME")
    if home:
        if os.access(Path(home, "bin", "java"), os.X_OK):
            return
        raise EngineError(f"JAVA_HOME is {home}, but it has no bin/java. Unset it, or point it at Java 17 or newer.")
    if shutil.which("java", path=environment.get("PATH")) is None:
        raise EngineError(
            "Java is not installed (no 'java' on PATH, JAVA_HOME is not set). Install it: apt-get install "
            "openjdk-17-jre-headless, dnf install java-17-openjdk-headless, or brew install openjdk@17."
        )


def launch_environment(
    inherited: Mapping[str, str], *, extra: Mapping[str, str], binary: str, is_local: bool
) -> dict[str, str]:
    """The environment in which spark-submit is started.

    :param inherited: the environment of this process.
    :param extra: the operator's ``env_vars``.
    :param binary: name of the spark-submit program, as the connection has it.
    :param is_local: whether the executors run on this host; they then use this very Python.
    :raises EngineError: if the program is not found, or Java is not.
    """
    environment = {**inherited, **extra}
    if "/" not in binary and shutil.which(binary, path=environment.get("PATH")) is None:
        # spark-submit of the PyPI package lies beside this Python, and finds its Spark home only through PATH.
        homes = [Path(environment["SPARK_HOME"], "bin")] if environment.get("SPARK_HOME") else []
        homes.append(Path(sys.executable).parent)
        folder = next((folder for folder in homes if os.access(folder / binary, os.X_OK)), None)
        if folder is None:
            looked = ", ".join(str(home) for home in homes)
            raise EngineError(
                f"{binary} is not on PATH nor in {looked}. Install Spark (pip install pyspark) or set SPARK_HOME."
            )
        environment["PATH"] = os.pathsep.join(part for part in (str(folder), environment.get("PATH", "")) if part)
    check_java(environment)
    # For the Java that only puts spark-submit's command line together and ends.
    environment.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    if is_local:
        environment.setdefault("PYSPARK_PYTHON", sys.executable)
    return environment


def configuration_folder(environment: Mapping[str, str], *, binary: str = SPARK_SUBMIT) -> Path | None:
    """The folder of Spark's configuration, by the rules of spark-submit's own scripts; the folder need not exist. None
    if no Spark is found.

    :param environment: the environment in which spark-submit is started.
    :param binary: name of the spark-submit program, as the connection has it.
    """
    if environment.get("SPARK_CONF_DIR"):
        return Path(environment["SPARK_CONF_DIR"])
    if environment.get("SPARK_HOME"):
        return Path(environment["SPARK_HOME"], "conf")
    program = shutil.which(binary, path=environment.get("PATH"))
    if program is not None and not Path(program).with_name("find_spark_home.py").is_file():
        return Path(program).parent.parent / "conf"  # an unpacked distribution
    found = importlib.util.find_spec("pyspark")
    places = list(found.submodule_search_locations or []) if found else []
    return Path(places[0], "conf") if places else None


def spark_defaults(environment: Mapping[str, str], *, binary: str = SPARK_SUBMIT) -> Path | None:
    """The ``spark-defaults.conf`` that spark-submit would read if it were given no properties file.

    :param environment: as for :func:`configuration_folder`.
    :param binary: as for :func:`configuration_folder`.
    """
    folder = configuration_folder(environment, binary=binary)
    path = None if folder is None else folder / "spark-defaults.conf"
    return path if path is not None and path.is_file() else None
