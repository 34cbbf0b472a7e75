"""The process that runs one attempt against a Spark Connect server: a fork of the resident runner, or one of its own.

One attempt a process: modules of the user's code never mix with those of another attempt, and to kill the process is to
stop the attempt's client for good.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.engines.spark_connect_wire import Hello, Wire
from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.runtime.session import pin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SESSIONS = uuid.UUID("5b0f6e0c-9a0e-4b9e-8f0e-6d6963726f62")
"""Namespace of session ids: a session is found again by what it is for, from any process."""

MAX_RETRIES = 5
"""Of a call to a server that does not answer: after 50 ms, then four times as long each; 17 s in all. PySpark's own 15
are ten minutes, in which a task would wait for a server that has died."""

CLOSED = "SESSION_CLOSED"
_GENERATIONS = 1000
_closed: list[Any] = []
"""Kept until the process ends: a session of PySpark's that is garbage-collected waits for threads, and may do so in the
middle of starting one: for ever."""
_INTERRUPT_SECONDS = 30.0
_ROUNDS = 20


def session_id(purpose: str, generation: int) -> str:
    """Id of the session for ``purpose``. A server never opens an id again that it has closed, as it closes a session
    that was idle for an hour: then the next generation is taken."""
    return str(uuid.uuid5(SESSIONS, f"{purpose}\n{generation}"))


def load() -> None:
    """Import what an attempt needs. It opens no channel, so a fork after it is safe: gRPC starts threads with the first
    one."""
    for name in (
        *("numpy", "psutil"),
        "pyspark.serializers",
        "pyspark.sql.connect.session",
        "pyspark.sql.connect.functions",
        "pyspark.sql.connect.observation",
        "pyspark.sql.functions",
        "airflow_provider_microbatch.runtime.files",
        "airflow_provider_microbatch.runtime.write",
    ):
        importlib.import_module(name)


def converse(wire: Wire, *, sessions: int = 0, note: Callable[[str], None] = lambda session: None) -> int:
    """Say hello, and do what is asked for.

    :param sessions: how many there are, for who asks.
    :param note: told which session is used.
    :return: the exit status.
    """
    wire.send(Hello.of_this_process().to_dict())
    request = wire.receive()
    if request is None:
        return 0
    if request["do"] == "sessions":
        wire.send({"sessions": sessions})
        return 0
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    with contextlib.suppress(OSError):
        os.chdir(request["cwd"])
    try:
        if request["do"] == "interrupt":
            wire.send({"interrupted": interrupt(request["url"], request["session"], request["user"], request["tag"])})
            return 0
        spark, chosen = _join(request["url"], request["purpose"])
        note(chosen)
        wire.send({"ready": {"session": chosen, "server": spark.version, "client": _client_version()}})
    except Exception as error:
        wire.send({"error": _told(error)})
        return 1
    return _run(wire, spark, request)


def _client_version() -> str:
    import pyspark

    return pyspark.__version__


def _join(url: str, purpose: str) -> tuple[SparkSession, str]:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    for generation in range(_GENERATIONS):
        chosen = session_id(purpose, generation)
        spark: Any = SparkSession.builder.remote(f"{url};session_id={chosen}").create()
        spark.client.set_retry_policies([DefaultPolicy(max_retries=MAX_RETRIES)])
        try:
            _ = spark.version
        except PySparkException as error:
            if CLOSED not in str(error):
                raise
            # Stopped, or PySpark would go on taking it for the process's session where it looks for one by itself.
            spark.release_session_on_close = False
            spark.stop()
            _closed.append(spark)
            continue
        return spark, chosen
    raise RuntimeError(f"the server has closed {_GENERATIONS} sessions for {purpose}")


def _run(wire: Wire, spark: SparkSession, opened: Mapping[str, Any]) -> int:
    request = wire.receive()
    if request is None:
        return 0
    finish = _capture(wire)
    over = threading.Event()
    tag = opened["tag"]
    spark.addTag(tag)
    threading.Thread(target=_end_with, args=(wire, spark, tag, over), daemon=True, name="task").start()
    answer: dict[str, Any] = {"done": True}
    try:
        pin(spark, opened["conf"])
        _import_from(spark, [Path(path) for path in request["files"]])
        run_job(spark, Job.from_json(request["job"]))
    except BatchFailure as failure:
        sys.stderr.write(failure.traceback or f"{failure.error}\n")
        answer = {"error": failure.error}
    except Exception as error:
        answer = {"error": _told(error)}
    over.set()
    finish()
    wire.send(answer)
    return 0 if "done" in answer else 1


def _import_from(spark: SparkSession, files: list[Path]) -> None:
    """Make the user's files importable: here at once, and by Python workers of the server before the first Python
    function is sent there.

    A session that was sent a file gets a class loader of its own, for which Spark compiles its generated code again: a
    fifth of a small batch's time, which a transform without Python functions need not pay.
    """
    for path in files:
        where = str(path.parent if path.suffix == ".py" else path)
        if where not in sys.path:
            sys.path.insert(0, where)
        if path.suffix == ".py":
            # Else the user would get what the runner has loaded under that name.
            sys.modules.pop(path.stem, None)
    importlib.invalidate_caches()
    waiting = [str(path) for path in files]
    # Every function, table function and data source that PySpark's client sends goes through this one method.
    serializer: Any = importlib.import_module("pyspark.serializers").CloudPickleSerializer
    dumps = serializer.dumps

    def dumps_after_files(self: Any, what: Any) -> Any:
        sent, waiting[:] = list(waiting), []
        if sent:
            spark.addArtifacts(*sent, pyfile=True)
        return dumps(self, what)

    serializer.dumps = dumps_after_files


def _end_with(wire: Wire, spark: Any, tag: str, over: threading.Event) -> None:
    """End when the task has gone, as after ``kill -9``: what is written from here on is nobody's."""
    wire.receive()
    if over.is_set():
        return
    threading.Timer(_INTERRUPT_SECONDS, os._exit, [1]).start()
    with contextlib.suppress(Exception):
        spark.interruptTag(tag)
    os._exit(1)


def _capture(wire: Wire) -> Callable[[], None]:
    """Send what this process prints, and what it logs, to the task, line by line.

    :return: a function that sends the rest and ends that.
    """
    read, write = os.pipe()
    for descriptor in (1, 2):
        os.dup2(write, descriptor)
    os.close(write)

    def pump() -> None:
        with os.fdopen(read, encoding="utf-8", errors="replace") as lines, contextlib.suppress(OSError):
            for line in lines:
                wire.send({"line": line.rstrip("\n")})

    thread = threading.Thread(target=pump, daemon=True, name="output")
    thread.start()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s: %(message)s", force=True)
    for name in ("microbatch", "airflow_provider_microbatch.runtime"):
        logging.getLogger(name).setLevel(logging.INFO)

    def finish() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(nowhere, descriptor)
        thread.join(timeout=5.0)

    return finish


def interrupt(url: str, session: str, user: str, tag: str) -> int:
    """End all operations of a session that carry ``tag``, and wait until they have ended.

    :param url: of the server, with the token.
    :return: how many were interrupted.
    :raises RuntimeError: if they would not end.
    """
    import grpc  # type: ignore[import-untyped,unused-ignore]
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.proto import base_pb2 as proto
    from pyspark.sql.connect.proto import base_pb2_grpc

    builder = DefaultChannelBuilder(url)
    stub: Any = base_pb2_grpc.SparkConnectServiceStub(builder.toChannel())  # type: ignore[no-untyped-call]
    metadata = list(builder.metadata())
    owner = proto.UserContext(user_id=user)
    by_tag = proto.InterruptRequest.INTERRUPT_TYPE_TAG
    request = proto.InterruptRequest(session_id=session, user_context=owner, interrupt_type=by_tag, operation_tag=tag)
    ended: set[str] = set()
    for _ in range(_ROUNDS):
        try:
            found = stub.Interrupt(request, metadata=metadata, timeout=_INTERRUPT_SECONDS).interrupted_ids
        except grpc.RpcError as error:
            if CLOSED in str(error):
                return len(ended)
            raise
        if not found:
            return len(ended)
        for operation in found:
            ended.add(operation)
            again = proto.ReattachExecuteRequest(session_id=session, user_context=owner, operation_id=operation)
            try:
                # An interrupted operation is not over yet: its tasks may still write. Its answers are, when it is.
                for _answer in stub.ReattachExecute(again, metadata=metadata, timeout=_INTERRUPT_SECONDS):
                    pass
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise
    raise RuntimeError(f"the client of {tag} goes on starting operations")


def _told(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def main(arguments: list[str]) -> int:
    """Serve one conversation.

    :param arguments: the attempt's tag, which makes this process findable, and the number of the socket's descriptor.
    """
    wire = Wire(socket.socket(fileno=int(arguments[1])))
    load()
    status = converse(wire)
    # Threads of gRPC may still wait for the server; the session stays for the next batch.
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
