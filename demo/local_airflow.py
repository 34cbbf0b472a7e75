"""A real Airflow on this machine, for the demo and for the scheduler tests: LocalExecutor, one process each for
scheduler, DAG processor, triggerer and API server. Ports are found, and after :meth:`LocalAirflow.stop` nothing runs.
"""

from __future__ import annotations

import base64
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from demo.running_airflow import LocalAirflowError, RunningAirflow

MARK = "MICROBATCH_LOCAL_AIRFLOW"
"""Environment variable that every process below an instance inherits, also a JVM in a session of its own: this is how
one that outlives its parents is found again."""

_ROOT = Path(__file__).resolve().parent.parent

COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class LocalAirflow(RunningAirflow):
    """One Airflow with a home of its own.

    :param home: folder for database, configuration and logs; made if missing.
    :param dags: the DAGs folder.
    :param env: further environment variables for all components and tasks, such as ``AIRFLOW_CONN_SPARK_DEFAULT``.
        They win over the settings made here. This repository is on the ``PYTHONPATH`` already.
    :param unpaused: whether DAGs run as soon as they are found.
    :param parallelism: task processes at once; each is forked when Airflow starts.
    :param database: URL of an empty PostgreSQL database; by default a SQLite in ``home``, which needs no server.
    """

    def __init__(
        self,
        *,
        home: Path,
        dags: Path,
        env: Mapping[str, str] | None = None,
        unpaused: bool = False,
        parallelism: int = 4,
        database: str | None = None,
    ) -> None:
        super().__init__(home=home)
        self.dags = dags
        self.port = free_port()
        self.mark = secrets.token_hex(8)
        self._sessions: set[int] = set()
        self.env = {**self._environment(unpaused, parallelism, database), **(env or {})}

    @property
    def url(self) -> str:
        """Address of API server and UI."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, timeout: float = 90.0) -> None:
        """Make the database, start all components and wait until each says that it is healthy.

        :param timeout: seconds for the components to become healthy.
        :raises LocalAirflowError: if one does not; everything is stopped again then.
        """
        (self.home / "logs").mkdir(parents=True, exist_ok=True)
        try:
            self.command("db", "migrate")
            for name in COMPONENTS:
                self.start_component(name)
            self.wait_for(self.healthy, timeout=timeout, what="a healthy Airflow")
        except BaseException:
            self.stop()
            raise

    def command(self, *arguments: str, timeout: float = 120.0) -> str:
        """Run ``airflow …`` to its end and return what it printed.

        :raises LocalAirflowError: if it fails; the message is its output.
        """
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *arguments],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
        )
        text = done.stdout.decode(errors="replace")
        if done.returncode != 0:
            raise LocalAirflowError(f"airflow {' '.join(arguments)} ended with {done.returncode}:\n{text}")
        return text

    def start_component(self, name: str) -> None:
        """Start ``api-server``, ``scheduler``, ``dag-processor`` or ``triggerer``."""
        self._killed.discard(name)
        with self.log_file(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "airflow", *COMPONENTS[name]],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # Airflow's own processes overwrite their environment with a title, so these are known by their session.
        self._sessions.add(self._processes[name].pid)

    def kill_component(self, name: str, how: signal.Signals = signal.SIGKILL) -> int:
        """Send a component a signal until it ends: a scheduler waits for its tasks unless it is told again. What it has
        started goes on. :meth:`start_component` starts it again.

        :return: process id of what was killed.
        """
        process = self._processes[name]
        self._killed.add(name)
        while process.poll() is None:
            process.send_signal(how)
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
        return process.pid

    def stop(self, *, grace: float = 5.0) -> None:
        """Stop everything, the processes that tasks have left too. Idempotent.

        The API server goes last, so that the others can still tell it their last words.

        :param grace: seconds to end by itself; a scheduler waits for its tasks, which are killed after this.
        """
        last = self._processes.pop("api-server", None)
        rest = list(self._processes.values())
        for process in rest:
            process.terminate()
        deadline = time.monotonic() + grace
        for process in rest:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        if last is not None:
            last.terminate()
            with suppress(subprocess.TimeoutExpired):
                last.wait(grace)
        # A process may start another while we look, so look until there is none.
        while left := self.processes():
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=grace)
        for process in [*rest, *([last] if last else [])]:
            process.wait()
        self._processes.clear()

    def processes(self) -> list[psutil.Process]:
        """Everything alive that this instance has started, directly or not."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                ours = os.getsid(process.pid) in self._sessions or process.environ().get(MARK) == self.mark
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _environment(self, unpaused: bool, parallelism: int, database: str | None) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW__")}
        settings = {
            "core": {
                "dags_folder": str(self.dags),
                "executor": "LocalExecutor",
                "parallelism": str(parallelism),
                "load_examples": "False",
                "dags_are_paused_at_creation": str(not unpaused),
                "simple_auth_manager_all_admins": "True",
                "fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
                "execution_api_server_url": f"{self.url}/execution/",
            },
            "database": {"sql_alchemy_conn": database} if database else self._sqlite(),
            "logging": {"base_log_folder": str(self.home / "logs" / "tasks"), "colored_console_log": "False"},
            "api": {
                "host": "127.0.0.1",
                "port": str(self.port),
                "base_url": self.url,
                "secret_key": secrets.token_hex(16),
            },
            "api_auth": {"jwt_secret": secrets.token_hex(32)},
            # A second of idling between two loops is most of a micro-batch's overhead; loops without a pause take a
            # seventh of a core, which the batches need.
            "scheduler": {"scheduler_idle_sleep_time": "0.3"},
            # A file that comes or changes is parsed within seconds. To parse all others as often takes a core, and one
            # whose parse was not in time, on a busy machine, waits for so long.
            "dag_processor": {
                "refresh_interval": "5",
                "dag_file_processor_timeout": "180",
                "min_file_process_interval": "300",
                "parsing_processes": "1",
                "dag_processor_child_process_log_directory": str(self.home / "logs" / "dag_processor"),
            },
            "usage_data_collection": {"enabled": "False"},
        }
        chosen = {
            f"AIRFLOW__{section.upper()}__{option.upper()}": value
            for section, options in settings.items()
            for option, value in options.items()
        }
        # The environment's own programs first: tasks look for spark-submit on the PATH. This repository's packages are
        # found from any folder: Airflow's processes import demo.local_database.
        found_in = {
            "PATH": [str(Path(sys.executable).parent), inherited.get("PATH")],
            "PYTHONPATH": [str(_ROOT), inherited.get("PYTHONPATH")],
        }
        paths = {name: os.pathsep.join(part for part in parts if part) for name, parts in found_in.items()}
        return {**inherited, **chosen, **paths, "AIRFLOW_HOME": str(self.home), MARK: self.mark}

    def _sqlite(self) -> dict[str, str]:
        return {
            "sql_alchemy_conn": f"sqlite:///{self.home / 'airflow.db'}",
            "sql_alchemy_connect_args": "demo.local_database.CONNECT_ARGS",
            "sql_alchemy_connect_args_async": "demo.local_database.CONNECT_ARGS",
        }
