"""A real Airflow on this machine, for the demo and for the scheduler tests: LocalExecutor, one process each for
scheduler, DAG processor, triggerer and API server. Ports are found, and after :meth:`LocalAirflow.stop` nothing runs.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import psutil

from demo.local_database import PATIENCE

_ANSWERS_WITHIN = 2 * PATIENCE
"""Seconds that a caller waits for the API server, which itself may wait for the database."""

_MENDS_WITHIN = 30.0
"""Seconds for which a question is asked again when the API server answers with an error of its own: on a busy machine
it may stand still until the database ends its transaction, and the next one goes well."""

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

T = TypeVar("T")


class LocalAirflowError(Exception):
    """Airflow did not start, died, answered with an error, or something waited for did not come true."""


class _ServerError(LocalAirflowError):
    """The API server answered that the error is its own."""


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class LocalAirflow:
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
        self.home = home
        self.dags = dags
        self.port = free_port()
        self.mark = secrets.token_hex(8)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._sessions: set[int] = set()
        self._killed: set[str] = set()
        self._token = ""
        self.env = {**self._environment(unpaused, parallelism, database), **(env or {})}

    @property
    def url(self) -> str:
        """Address of API server and UI."""
        return f"http://127.0.0.1:{self.port}"

    def grid_url(self, dag_id: str) -> str:
        """Address of a DAG's grid view."""
        return f"{self.url}/dags/{dag_id}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

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

    def dead_components(self) -> list[str]:
        """Names of components whose process has ended, by a kill or by itself."""
        return [name for name, process in self._processes.items() if process.poll() is not None]

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

    def log_file(self, component: str) -> Path:
        """Where a component's output goes."""
        return self.home / "logs" / f"{component}.log"

    def wait_for(self, condition: Callable[[], T], *, timeout: float, what: str, every: float = 0.2) -> T:
        """Ask ``condition`` until it answers with something true, and return that.

        :param timeout: seconds before giving up.
        :param what: what is waited for, for the message.
        :param every: seconds between two questions.
        :raises LocalAirflowError: after ``timeout``, or at once when a component has died that nobody has killed.
        """
        deadline = time.monotonic() + timeout
        while True:
            for name in set(self.dead_components()) - self._killed:
                raise LocalAirflowError(
                    f"Airflow's {name} died with {self._processes[name].returncode} while waiting for {what}; "
                    f"its last lines:\n{self._tail(name)}"
                )
            answer = condition()
            if answer:
                return answer
            if time.monotonic() > deadline:
                raise LocalAirflowError(
                    f"waited {timeout:.0f} s for {what}, in vain. Logs are below {self.home / 'logs'}."
                )
            time.sleep(every)

    def api(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: Any) -> Any:
        """Call the REST API. A GET, which changes nothing, is asked again when the API server fails at it.

        :param path: below ``/api/v2/``, not quoted: ``/`` separates, everything else is quoted here.
        :raises LocalAirflowError: for an answer that is an error.
        """
        where = f"/api/v2/{urllib.parse.quote(path)}"
        if query:
            where += "?" + urllib.parse.urlencode(query, doseq=True)
        if not self._token:
            self._token = self._call("GET", "/auth/token", None, token="")["access_token"]
        return self._call(method, where, body, token=self._token)

    def unpause(self, dag_id: str, *, timeout: float = 60.0) -> None:
        """Wait until the DAG was found, then let it run."""
        self.wait_for(lambda: self._known(dag_id), timeout=timeout, what=f"DAG {dag_id}")
        self.api("PATCH", f"dags/{dag_id}", {"is_paused": False})

    def pause(self, dag_id: str) -> None:
        """Start no further runs of the DAG."""
        self.api("PATCH", f"dags/{dag_id}", {"is_paused": True})

    def trigger(self, dag_id: str) -> str:
        """Start a run by hand and return its id."""
        return str(self.api("POST", f"dags/{dag_id}/dagRuns", {"logical_date": None})["dag_run_id"])

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """Runs of a DAG, oldest first: ``dag_run_id``, ``state`` and more, at most 100."""
        answer = self.api("GET", f"dags/{dag_id}/dagRuns", limit=100, order_by="run_after")
        return list(answer["dag_runs"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        """State of a run."""
        return str(self.api("GET", f"dags/{dag_id}/dagRuns/{run_id}")["state"])

    def wait_for_run(self, dag_id: str, run_id: str, *, timeout: float = 120.0) -> str:
        """Wait until a run has ended, and return how: ``success`` or ``failed``."""
        self.wait_for(
            lambda: self.run_state(dag_id, run_id) in ("success", "failed"),
            timeout=timeout,
            what=f"the end of run {run_id} of {dag_id}",
            every=0.5,
        )
        return self.run_state(dag_id, run_id)

    def task_instances(self, dag_id: str, run_id: str) -> dict[str, dict[str, Any]]:
        """Task instances of a run by task id: ``state``, ``try_number``, ``rendered_map_index``, ``note`` and more."""
        answer = self.api("GET", f"dags/{dag_id}/dagRuns/{run_id}/taskInstances", limit=100)
        return {instance["task_id"]: instance for instance in answer["task_instances"]}

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """An XCom value of a task instance."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.api("GET", path, deserialize=True)["value"]

    def clear(self, dag_id: str, run_id: str, *task_ids: str, reset_dag_runs: bool = True) -> None:
        """Clear tasks of a run, as the button in the grid does; without task ids, all of them.

        :param reset_dag_runs: also count the clear in the run, and start it anew if it has ended.
        """
        body: dict[str, Any] = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": list(task_ids) or None,
            "only_failed": False,
            "reset_dag_runs": reset_dag_runs,
        }
        self.api("POST", f"dags/{dag_id}/clearTaskInstances", body)

    def task_log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1) -> str:
        """Text of a task's log, the errors with their messages."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}"
        content = self.api("GET", path, full_content=True)["content"]
        return "\n".join(_log_line(line) for line in content)

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
            # A second of idling between two loops is most of a micro-batch's overhead.
            "scheduler": {"scheduler_idle_sleep_time": "0.1"},
            "dag_processor": {
                "refresh_interval": "5",
                "min_file_process_interval": "5",
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

    def healthy(self) -> bool:
        """Whether all components say that they are."""
        try:
            health = self._request("GET", "/api/v2/monitor/health", None, token="")
        except (OSError, LocalAirflowError):
            return False
        parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return all(health[part] and health[part]["status"] == "healthy" for part in parts)

    def _known(self, dag_id: str) -> bool:
        try:
            self.api("GET", f"dags/{dag_id}")
        except LocalAirflowError:
            errors = self.api("GET", "importErrors")["import_errors"]
            if errors:
                raise LocalAirflowError("\n".join(error["stack_trace"] for error in errors)) from None
            return False
        return True

    def _call(self, method: str, where: str, body: Mapping[str, Any] | None, *, token: str) -> Any:
        deadline = time.monotonic() + _MENDS_WITHIN
        while True:
            try:
                return self._request(method, where, body, token=token)
            except _ServerError:
                # Anything but a GET may have been done all the same.
                if method != "GET" or time.monotonic() > deadline:
                    raise
            time.sleep(0.5)

    def _request(self, method: str, where: str, body: Mapping[str, Any] | None, *, token: str) -> Any:
        request = urllib.request.Request(f"{self.url}{where}", method=method)
        request.add_header("Accept", "application/json")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=_ANSWERS_WITHIN) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            told = f"{method} {where}: {error.code} {error.read().decode(errors='replace')}"
            if error.code >= 500:
                raise _ServerError(f"{told}. {self._more}") from None
            raise LocalAirflowError(told) from None
        except TimeoutError:
            raise LocalAirflowError(f"{method} {where}: no answer within {_ANSWERS_WITHIN} s. {self._more}") from None
        return json.loads(text) if text else None

    @property
    def _more(self) -> str:
        return f"What the API server says is in {self.log_file('api-server')}."

    def _tail(self, name: str, lines: int = 30) -> str:
        return "\n".join(self.log_file(name).read_text(errors="replace").splitlines()[-lines:])


def _log_line(line: str | dict[str, Any]) -> str:
    if isinstance(line, str):
        return line
    errors = [f"{error['exc_type']}: {error['exc_value']}" for error in line.get("error_detail") or []]
    return "\n".join([str(line.get("event", "")), *errors])
