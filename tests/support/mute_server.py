"""A Spark Connect server that hears every request and answers some of them only: a JVM that is frozen, or half so."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from pyspark.sql.connect.proto import base_pb2 as proto


def _config(request: Any) -> Any:
    pairs = [proto.KeyValue(key=pair.key, value=pair.value) for pair in request.operation.set.pairs]
    return proto.ConfigResponse(session_id=request.session_id, pairs=pairs)


def _version(request: Any) -> Any:
    version = proto.AnalyzePlanResponse.SparkVersion(version="4.1.0")
    return proto.AnalyzePlanResponse(session_id=request.session_id, spark_version=version)


_REQUESTS = {
    "Config": proto.ConfigRequest,
    "AnalyzePlan": proto.AnalyzePlanRequest,
}
_ANSWERS: Mapping[str, Callable[[Any], Any]] = {"Config": _config, "AnalyzePlan": _version}


@dataclass
class Mute(grpc.GenericRpcHandler):  # type: ignore[misc,unused-ignore]
    """:param answers: the calls that it answers; all others wait until it ends."""

    answers: set[str]
    url: str = ""
    heard: Counter[str] = field(default_factory=Counter)
    over: threading.Event = field(default_factory=threading.Event)
    _news: threading.Condition = field(default_factory=threading.Condition)

    def wait_for(self, call: str, *, times: int = 1) -> None:
        """Wait until it has heard that call so often."""
        with self._news:
            assert self._news.wait_for(lambda: self.heard[call] >= times, timeout=60), dict(self.heard)

    def service(self, details: Any) -> Any:
        """As gRPC has it."""
        call = details.method.rpartition("/")[2]
        with self._news:
            self.heard[call] += 1
            self._news.notify_all()
        if call in self.answers:
            return grpc.unary_unary_rpc_method_handler(
                lambda request, _: _ANSWERS[call](request).SerializeToString(),
                request_deserializer=_REQUESTS[call].FromString,
            )
        return grpc.unary_unary_rpc_method_handler(lambda *_: self.over.wait() and b"")


@contextmanager
def mute_server(*answers: str) -> Iterator[Mute]:
    """:param answers: the calls that it answers."""
    mute = Mute(set(answers))
    server = grpc.server(ThreadPoolExecutor(64), handlers=[mute])
    mute.url = f"sc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield mute
    finally:
        mute.over.set()
        server.stop(grace=None).wait()
