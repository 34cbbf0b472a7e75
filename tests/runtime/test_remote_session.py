"""Who ends the operations of another process's session, and waits until they have ended."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

from airflow_provider_microbatch.runtime import connect
from airflow_provider_microbatch.runtime.connect import RELEASED, RemoteSession

CANCELED = "[OPERATION_CANCELED] Operation has been canceled. SQLSTATE: HY008"
GONE = f"[{RELEASED}] The cursor is invalid. The cursor position id 7 is no longer available at index 1."


class Interrupted(base_pb2_grpc.SparkConnectServiceServicer):
    """A session with one operation, whose client has released the answers that it had read. Spark 4.0.4 and 4.1.3
    answer so: an interrupted operation is asked in vain until its thread has ended, a tenth of a second later.

    :param rounds: how often the operation is asked until it has ended; None for never.
    """

    def __init__(self, rounds: int | None) -> None:
        self.rounds = rounds
        self.asked = 0
        self.was_interrupted = False

    def Interrupt(self, request: Any, context: grpc.ServicerContext) -> Any:
        found, self.was_interrupted = [] if self.was_interrupted else [str(uuid.uuid4())], True
        return base_pb2.InterruptResponse(session_id=request.session_id, interrupted_ids=found)

    def ReattachExecute(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        self.asked += 1
        is_over = self.rounds is not None and self.asked > self.rounds
        context.abort(grpc.StatusCode.INTERNAL, CANCELED if is_over else GONE)
        yield


@pytest.fixture
def session(request: pytest.FixtureRequest) -> Iterator[tuple[Interrupted, RemoteSession]]:
    service = Interrupted(request.param)
    server = grpc.server(ThreadPoolExecutor(2))
    base_pb2_grpc.add_SparkConnectServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield service, RemoteSession(f"sc://127.0.0.1:{port}", session=str(uuid.uuid4()), user="me")
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize("session", [3], indirect=True)
def test_an_operation_whose_answers_are_released_is_waited_for_too(session: tuple[Interrupted, RemoteSession]) -> None:
    service, remote = session
    assert remote.interrupt() == 1
    assert service.asked == 4


@pytest.mark.parametrize("session", [None], indirect=True)
def test_and_who_waits_says_that_it_does_not_end(
    session: tuple[Interrupted, RemoteSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "_SECONDS", 0.5)
    with pytest.raises(RuntimeError, match=r"operation .* was interrupted, and does not end"):
        session[1].interrupt()
