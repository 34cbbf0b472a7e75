"""Who ends the operations of another process's session, and waits until they have ended."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2, status_pb2
from grpc_status import rpc_status
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

from airflow_provider_microbatch.runtime import connect
from airflow_provider_microbatch.runtime.connect import RemoteSession

Answer = Callable[[grpc.ServicerContext], Iterator[Any]]


def told(text: str) -> Answer:
    """An error as Spark tells it."""

    def answer(context: grpc.ServicerContext) -> Iterator[Any]:
        context.abort_with_status(rpc_status.to_status(status_pb2.Status(code=code_pb2.INTERNAL, message=text)))
        yield

    return answer


def broken(code: grpc.StatusCode, text: str) -> Answer:
    """An error of what is between the server and its client."""

    def answer(context: grpc.ServicerContext) -> Iterator[Any]:
        context.abort(code, text)
        yield

    return answer


def streamed(*answers: Any) -> Answer:
    return lambda _: iter(answers)


CANCELED = told("[OPERATION_CANCELED] Operation has been canceled. SQLSTATE: HY008")
RELEASED = told(
    "[INVALID_CURSOR.POSITION_NOT_AVAILABLE] The cursor is invalid. The cursor position id 7 is no longer available at "
    "index 1."
)
RUNS = {
    "its client has released the answers that it had read": RELEASED,
    "its client has taken the stream back": told(
        "[INVALID_CURSOR.DISCONNECTED] The cursor is invalid. The cursor has been disconnected by the server."
    ),
    "the stream has become too long": streamed(base_pb2.ExecutePlanResponse()),
    "the connection is lost": broken(grpc.StatusCode.UNAVAILABLE, "Connection reset by peer"),
    "a proxy has ended the stream": broken(grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2"),
}
OVER = {
    "canceled": CANCELED,
    "complete": streamed(
        base_pb2.ExecutePlanResponse(),
        base_pb2.ExecutePlanResponse(result_complete=base_pb2.ExecutePlanResponse.ResultComplete()),
    ),
    "failed": told("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012"),
    "removed": told("[INVALID_HANDLE.OPERATION_NOT_FOUND] The handle is invalid. Operation not found. SQLSTATE: HY000"),
}


class Interrupted(base_pb2_grpc.SparkConnectServiceServicer):
    """A session with one operation, which runs on after it was interrupted. Spark 4.0.4 and 4.1.3 answer as here until
    its thread has ended, a tenth of a second later or seconds.

    :ivar answers: what the operation answers when it is asked; the last one again and again.
    """

    def __init__(self) -> None:
        self.answers = [CANCELED]
        self.asked = 0
        self.was_interrupted = False

    def Interrupt(self, request: Any, context: grpc.ServicerContext) -> Any:
        found, self.was_interrupted = [] if self.was_interrupted else [str(uuid.uuid4())], True
        return base_pb2.InterruptResponse(session_id=request.session_id, interrupted_ids=found)

    def ReattachExecute(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1](context)


@pytest.fixture
def service() -> Interrupted:
    return Interrupted()


@pytest.fixture
def remote(service: Interrupted) -> Iterator[RemoteSession]:
    server = grpc.server(ThreadPoolExecutor(2))
    base_pb2_grpc.add_SparkConnectServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield RemoteSession(f"sc://127.0.0.1:{port}", session=str(uuid.uuid4()), user="me")
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize("how", RUNS)
def test_an_operation_is_waited_for_until_its_end_is_told(
    how: str, service: Interrupted, remote: RemoteSession
) -> None:
    service.answers = [*[RUNS[how]] * 3, CANCELED]
    assert remote.interrupt() == 1
    assert service.asked == 4


@pytest.mark.parametrize("how", OVER)
def test_these_answers_tell_the_end(how: str, service: Interrupted, remote: RemoteSession) -> None:
    service.answers = [OVER[how]]
    assert remote.interrupt() == 1
    assert service.asked == 1


@pytest.mark.parametrize("is_silent", [False, True])
def test_and_who_waits_says_that_it_does_not_end(
    is_silent: bool, service: Interrupted, remote: RemoteSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the last answer that was asked for was not there in time."""

    def silent(context: grpc.ServicerContext) -> Iterator[Any]:
        is_given_up = threading.Event()
        context.add_callback(is_given_up.set)
        is_given_up.wait()
        yield

    service.answers = [silent if is_silent else RELEASED]
    monkeypatch.setattr(connect, "_SECONDS", 0.5)
    with pytest.raises(RuntimeError, match=r"operation .* was interrupted, and does not end"):
        remote.interrupt()
