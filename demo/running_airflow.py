"""An Airflow that runs, whoever has started its components: its REST API, and waiting for what it is to do."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import psutil

from demo.local_database import PATIENCE
from demo.processes import java_among

_ANSWERS_WITHIN = 2 * PATIENCE
"""Seconds that a caller waits for the API server, which itself may wait for the database."""

_MENDS_WITHIN = 30.0
"""Seconds for which a question is asked again when the API server answers with an error of its own: on a busy machine
it may stand still until the database ends its transaction, and the next one goes well."""

T = TypeVar("T")


class LocalAirflowError(Exception):
    """Airflow did not start, died, answered with an error, or something waited for did not come true."""


class _ServerError(LocalAirflowError):
    """The API server answered that the error is its own."""


class RunningAirflow(ABC):
    """:param home: folder whose ``logs`` has what each component prints."""

    def __init__(self, *, home: Path) -> None:
        self.home = home
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._killed: set[str] = set()
        self._token = ""

    @property
    @abstractmethod
    def url(self) -> str:
        """Address of API server and UI."""

    @abstractmethod
    def processes(self) -> list[psutil.Process]:
        """Everything alive that this instance has started, directly or not."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Start all components and wait until each says that it is healthy.

        :raises LocalAirflowError: if one does not; everything is stopped again then.
        """

    @abstractmethod
    def stop(self) -> None:
        """Stop everything, the processes that tasks have left too. Idempotent."""

    def drivers_and_executors(self) -> list[psutil.Process]:
        """The Java of batches."""
        return java_among(self.processes())

    @abstractmethod
    def start_component(self, name: str) -> None:
        """Start a component, or start it again."""

    def start_again(self) -> None:
        """Start every component that was killed."""
        for name in self.dead_components():
            self.start_component(name)

    def grid_url(self, dag_id: str) -> str:
        """Address of a DAG's grid view."""
        return f"{self.url}/dags/{dag_id}"

    def dead_components(self) -> list[str]:
        """Names of components whose process has ended, by a kill or by itself."""
        return [name for name, process in self._processes.items() if process.poll() is not None]

    def log_file(self, component: str) -> Path:
        """Where a component's output goes."""
        return self.home / "logs" / f"{component}.log"

    def wait_for(self, condition: Callable[[], T], *, timeout: float, what: str, every: float = 0.4) -> T:
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
                    f"waited {timeout:.0f} s for {what}, in vain. Logs are below {self.home / 'logs'}. Tasks that have "
                    f"not succeeded, the newest first:\n{self._unfinished()}"
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

    def unpause(self, dag_id: str, *, timeout: float = 180.0) -> None:
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

    def _unfinished(self, newest: int = 8, lines: int = 8) -> str:
        """The ends of these tasks' logs: nothing else is left when somebody reads what a test has printed."""
        told = []
        try:
            begun = self.api("GET", "dags/~/dagRuns/~/taskInstances", limit=100, order_by="-start_date")
            open_ones = [one for one in begun["task_instances"] if one["state"] not in ("success", "removed")]
            for one in open_ones[:newest]:
                where = (one["dag_id"], one["dag_run_id"], one["task_id"], one["try_number"])
                told.append(f"{one['state']}: {' '.join(map(str, where))}")
                if one["try_number"]:
                    told += self.task_log(*where).splitlines()[-lines:]
        except (OSError, LocalAirflowError) as error:
            told.append(f"its tasks cannot be told: {error}")
        return "\n".join(told)

    def _tail(self, name: str, lines: int = 30) -> str:
        return "\n".join(self.log_file(name).read_text(errors="replace").splitlines()[-lines:])


def _log_line(line: str | dict[str, Any]) -> str:
    if isinstance(line, str):
        return line
    errors = [f"{error['exc_type']}: {error['exc_value']}" for error in line.get("error_detail") or []]
    return "\n".join([str(line.get("event", "")), *errors])
