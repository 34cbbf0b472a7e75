"""What is asked again when the API server answers with an error of its own, and what never is."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from demo import running_airflow
from demo.local_airflow import LocalAirflow, LocalAirflowError


@dataclass(kw_only=True)
class Server:
    """An API server that answers as it is told.

    :param answers: status codes of the next answers; 200 when they are used up.
    """

    answers: list[int] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of each call, but for the token's."""
    bodies: dict[str, dict[str, object]] = field(default_factory=dict)
    """What is answered where the path has the text."""

    def answer(self, method: str, path: str) -> tuple[int, dict[str, object]]:
        if path == "/auth/token":
            return 200, {"access_token": "one"}
        self.calls.append((method, path))
        code = self.answers.pop(0) if self.answers else 200
        if code != 200:
            return code, {"detail": "it went wrong"}
        return code, next((body for text, body in self.bodies.items() if text in path), {"state": "success"})


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def airflow(server: Server, tmp_path: Path) -> Iterator[LocalAirflow]:
    """One of which only the address is used."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            code, body = server.answer(self.command, self.path)
            text = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = _answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    airflow = LocalAirflow(home=tmp_path, dags=tmp_path / "dags")
    airflow.port = listening.server_port
    yield airflow
    listening.shutdown()
    thread.join()
    listening.server_close()


def test_a_question_is_asked_again_until_the_api_server_can_answer(airflow: LocalAirflow, server: Server) -> None:
    server.answers = [500, 503]
    assert airflow.run_state("orders", "one") == "success"
    assert server.calls == [("GET", "/api/v2/dags/orders/dagRuns/one")] * 3


def test_who_is_never_answered_reads_the_last_error_and_where_more_is_said(
    airflow: LocalAirflow, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_airflow, "_MENDS_WITHIN", 1.0)
    server.answers = [500, *[503] * 100]
    with pytest.raises(LocalAirflowError, match="503") as error:
        airflow.run_state("orders", "one")
    assert "it went wrong" in str(error.value)
    assert str(airflow.log_file("api-server")) in str(error.value)
    assert 1 < len(server.calls) < 100


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_what_may_have_been_done_is_not_said_again(airflow: LocalAirflow, server: Server, method: str) -> None:
    server.answers = [500]
    with pytest.raises(LocalAirflowError, match="500"):
        airflow.api(method, "dags/orders", {"is_paused": False})
    assert server.calls == [(method, "/api/v2/dags/orders")]


def test_a_question_that_is_wrong_is_not_asked_again(airflow: LocalAirflow, server: Server) -> None:
    server.answers = [404]
    with pytest.raises(LocalAirflowError, match="404"):
        airflow.run_state("orders", "one")
    assert len(server.calls) == 1


def test_whether_airflow_is_healthy_is_answered_at_once(airflow: LocalAirflow, server: Server) -> None:
    server.answers = [500]
    assert not airflow.healthy()
    assert len(server.calls) == 1


def test_who_waits_in_vain_reads_which_tasks_have_not_succeeded_and_the_ends_of_their_logs(
    airflow: LocalAirflow, server: Server
) -> None:
    names = {"dag_id": "orders", "dag_run_id": "one"}
    server.bodies = {
        "taskInstances?": {
            "task_instances": [
                {**names, "task_id": "batch", "try_number": 2, "state": "skipped"},
                {**names, "task_id": "before", "try_number": 1, "state": "success"},
                {**names, "task_id": "after", "try_number": 0, "state": None},
            ]
        },
        "taskInstances/batch/logs/2": {"content": [{"event": "batch 1 is in progress"}]},
    }
    with pytest.raises(LocalAirflowError, match="the commit") as error:
        airflow.wait_for(lambda: False, timeout=0, what="the commit")
    told = str(error.value).splitlines()[1:]
    assert told == ["skipped: orders one batch 2", "batch 1 is in progress", "None: orders one after 0"]


def test_who_waits_in_vain_is_told_so_though_the_api_server_is_gone(airflow: LocalAirflow, server: Server) -> None:
    server.answers = [404]
    with pytest.raises(LocalAirflowError, match=r"waited 0 s for the commit, in vain(?s:.*)cannot be told.*404"):
        airflow.wait_for(lambda: False, timeout=0, what="the commit")
