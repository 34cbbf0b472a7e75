"""Detects a Spark Connect server that accepts calls and does not answer: a frozen JVM, or a host that was lost without
notice. No call of PySpark's client has a deadline, and a call that runs a statement can have none.

gRPC's keepalive does not help: Spark's server permits one ping in five minutes, and ends the connection of a client
that sends more while a statement is quiet. Questions that the server answers may be sent as often as needed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc  # type: ignore[import-untyped,unused-ignore]

ASK_SECONDS = 15.0
"""Seconds between two questions to the server."""

SILENT_SECONDS = 60.0
"""Seconds without an answer after which a server is given up. A server that collects garbage is silent for less."""

CLOSE_SECONDS = 5.0
"""Seconds to wait for the end of a session, or of a statement that is over: the server forgets both by itself."""


class Watch:
    """Asks a session's server periodically whether it answers.

    :param spark: a session of Spark Connect that has not been used yet.
    :param on_silence: called once, in a thread, when the server has not answered.
    """

    def __init__(self, spark: Any, *, on_silence: Callable[[], None]) -> None:
        from pyspark.sql.connect.proto import base_pb2 as proto
        from pyspark.sql.connect.proto import base_pb2_grpc

        client = spark.client
        user = proto.UserContext(user_id=client._user_id)
        who: dict[str, Any] = {"session_id": spark.session_id, "user_context": user}
        nothing = proto.ConfigRequest.Operation(get_option=proto.ConfigRequest.GetOption())
        self.is_silent = False
        self._on_silence = on_silence
        self._metadata = list(client._builder.metadata())
        self._stub: Any = base_pb2_grpc.SparkConnectServiceStub(client._channel)  # type: ignore[no-untyped-call]
        self._question = proto.ConfigRequest(operation=nothing, **who)
        self._release = proto.ReleaseSessionRequest(**who)
        self._asking = threading.Lock()
        self._over = threading.Event()
        threading.Thread(target=self._ask, daemon=True, name="silence").start()

    def end(self) -> None:
        """Stop asking, and end the session if the server answers soon."""
        with self._asking:
            self._over.set()
        if not self.is_silent:
            with suppress(grpc.RpcError):
                self._stub.ReleaseSession(self._release, metadata=self._metadata, timeout=CLOSE_SECONDS)

    def _ask(self) -> None:
        while not self._over.wait(ASK_SECONDS):
            with self._asking:
                # A call on a closed channel kills the process.
                if self._over.is_set():
                    return
                answer = self._stub.Config.future(self._question, metadata=self._metadata, timeout=SILENT_SECONDS)
            # Any other error is an answer, or the end of the connection, which ends the other calls too.
            if answer.code() is grpc.StatusCode.DEADLINE_EXCEEDED and not self._over.is_set():
                self.is_silent = True
                self._on_silence()
                return


class Calls(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc,unused-ignore]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc,unused-ignore]
):
    """The calls of a client that runs statements, so that no call outlasts a server that has fallen silent: short calls
    get a deadline, and calls that wait for a statement can be ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = False
        self._running: weakref.WeakSet[Any] = weakref.WeakSet()

    def end(self) -> None:
        """End all running calls, and all later ones."""
        with self._lock:
            self._ended = True
            running = list(self._running)
        for call in running:
            call.cancel()

    def close(self, client: Any) -> None:
        """End all calls, and close the client, which waits for the threads of its calls: none of them waits for long.

        After the return no thread waits for an answer, neither when the session is garbage-collected nor when Python
        ends.
        """
        self.end()
        close, client.close = client.close, lambda: None
        client._closed = True
        close()

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """Give the call a deadline; called by gRPC."""
        timeout = details.timeout
        if self._ended:
            timeout = 0
        elif timeout is None and details.method.endswith("/ReleaseExecute"):
            timeout = CLOSE_SECONDS
        elif timeout is None:
            timeout = ASK_SECONDS + SILENT_SECONDS + 1  # the watch finds and reports silence earlier
        return continuation(details._replace(timeout=timeout), request)

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        """Register the call, so that :meth:`end` can cancel it; called by gRPC."""
        call = continuation(details, request)
        with self._lock:
            self._running.add(call)
            ended = self._ended
        if ended:
            call.cancel()
        return call


def has_not_answered() -> str:
    """The words of an error about a server that was given up."""
    return f"has not answered for {SILENT_SECONDS:g} seconds"
