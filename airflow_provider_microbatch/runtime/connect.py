"""Sessions of a Spark Connect server by their ids: how one process ends the operations that another process runs
there."""

from __future__ import annotations

import time
from typing import Any

CLOSED = "SESSION_CLOSED"
"""The server's answer to any use of a closed session. A server never opens an id again that it has closed."""

_CURSOR = "INVALID_CURSOR"
"""In the server's answer to who cannot follow an operation's answers: its client has released those that it had read,
or has taken their stream. The operation may still run."""

_DETAILS = "grpc-status-details-bin"
"""Has an error that the server tells, and none of the connection."""

_SECONDS = 30.0
_PAUSE = 0.05
_ROUNDS = 20
_NOWHERE = "microbatch_closed"


class RemoteSession:
    """A session of a server, no matter which process opened it, and whether or not it is open yet.

    :param url: URL of the server, with the token.
    :param session: id of the session.
    :param user: the session's user; a server knows sessions by user and id.
    """

    def __init__(self, url: str, *, session: str, user: str) -> None:
        from pyspark.sql.connect.client import DefaultChannelBuilder
        from pyspark.sql.connect.proto import base_pb2 as proto
        from pyspark.sql.connect.proto import base_pb2_grpc

        from airflow_provider_microbatch.runtime.guard import Guard

        builder = DefaultChannelBuilder(url)
        builder.add_interceptor(Guard(url))
        self._proto: Any = proto
        self._channel: Any = builder.toChannel()
        self._stub: Any = base_pb2_grpc.SparkConnectServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._metadata = list(builder.metadata())
        self._who: dict[str, Any] = {"session_id": session, "user_context": proto.UserContext(user_id=user)}

    def end(self) -> None:
        """End the session and everything that runs in it. After the return, no statement that was sent to the session,
        and none that arrives later, changes a table.

        :raises RuntimeError: if operations of the session do not end.
        :raises grpc.RpcError: if the server does not answer.
        """
        # A request may arrive late, between the last interrupt and the close: from here on, names in it resolve to
        # nothing.
        pair = self._proto.KeyValue(key="spark.sql.defaultCatalog", value=_NOWHERE)
        setting = self._proto.ConfigRequest.Set(pairs=[pair])
        request = self._proto.ConfigRequest(operation=self._proto.ConfigRequest.Operation(set=setting), **self._who)
        if self._is_closed(self._stub.Config, request):
            return
        self.interrupt()
        self.close()

    def interrupt(self, tag: str | None = None) -> int:
        """End the operations that run in the session, and wait until they have ended. Opens the session if it is not
        open.

        :param tag: only operations that carry this tag; None ends all.
        :return: how many operations were interrupted.
        :raises RuntimeError: if operations do not end.
        :raises grpc.RpcError: if the server does not answer.
        """
        import grpc  # type: ignore[import-untyped,unused-ignore]

        kinds = self._proto.InterruptRequest
        which = (
            {"interrupt_type": kinds.INTERRUPT_TYPE_ALL}
            if tag is None
            else {"interrupt_type": kinds.INTERRUPT_TYPE_TAG, "operation_tag": tag}
        )
        request = kinds(**self._who, **which)
        ended: set[str] = set()
        for _ in range(_ROUNDS):
            try:
                found = self._stub.Interrupt(request, metadata=self._metadata, timeout=_SECONDS).interrupted_ids
            except grpc.RpcError as error:
                if CLOSED in str(error):
                    return len(ended)
                raise
            if not found:
                return len(ended)
            for operation in found:
                ended.add(operation)
                self._wait_for(operation)
        raise RuntimeError(f"the client of session {self._who['session_id']} goes on starting operations")

    def close(self) -> None:
        """Close the session: the server refuses all later requests of its client.

        :raises grpc.RpcError: if the server does not answer.
        """
        self._is_closed(self._stub.ReleaseSession, self._proto.ReleaseSessionRequest(**self._who))

    def _wait_for(self, operation: str) -> None:
        """Wait until an interrupted operation is over: its tasks may still write until the stream of its answers
        ends.

        :raises RuntimeError: if the operation does not end.
        """
        deadline = time.monotonic() + _SECONDS
        while not self._is_over(operation, seconds=max(deadline - time.monotonic(), _PAUSE)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"operation {operation} was interrupted, and does not end")
            time.sleep(_PAUSE)

    def _is_over(self, operation: str, *, seconds: float) -> bool:
        """Follow an interrupted operation's answers to their end.

        :return: False if that end was not seen: until the operation ends, the server says nothing of it to who asks for
            answers that its client has released, or whose stream its client takes back; and a stream may break, or be
            ended for its length. Whoever takes that for the end closes the session below an operation that still runs,
            which the server refuses.
        """
        import grpc  # type: ignore[import-untyped,unused-ignore]

        again = self._proto.ReattachExecuteRequest(operation_id=operation, **self._who)
        try:
            answers = self._stub.ReattachExecute(again, metadata=self._metadata, timeout=seconds)
            return any(answer.HasField("result_complete") for answer in answers)
        except grpc.RpcError as error:
            is_told = any(key == _DETAILS for key, _ in error.trailing_metadata() or ())
            return is_told and _CURSOR not in str(error)

    def _is_closed(self, call: Any, request: Any) -> bool:
        import grpc  # type: ignore[import-untyped,unused-ignore]

        try:
            call(request, metadata=self._metadata, timeout=_SECONDS)
        except grpc.RpcError as error:
            if CLOSED not in str(error):
                raise
            return True
        return False
