"""The process that runs one attempt against a Spark Connect server: a fork of the resident runner, or a new process.

Each attempt has a process of its own: modules of the user's code never mix with those of another attempt, and killing
the process stops the attempt's client for good.
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
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.engines.spark_connect.session import AttemptSession, end_session
from airflow_provider_microbatch.engines.spark_connect.wire import Hello, Wire
from airflow_provider_microbatch.runtime import secrets
from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.runtime.masking import mask
from airflow_provider_microbatch.runtime.session import pin
from airflow_provider_microbatch.runtime.silence import has_not_answered

_INTERRUPT_SECONDS = 30.0


def load() -> None:
    """Import the modules that an attempt needs. No channel is opened, so a fork afterwards is safe: gRPC starts threads
    with the first channel."""
    for name in (
        *("numpy", "psutil"),
        "pyspark.serializers",
        "pyspark.sql.connect.session",
        "pyspark.sql.connect.functions",
        "pyspark.sql.connect.observation",
        "pyspark.sql.functions",
        "airflow_provider_microbatch.runtime.files",
        "airflow_provider_microbatch.runtime.guard",
        "airflow_provider_microbatch.runtime.write",
    ):
        importlib.import_module(name)
    for name in ("grpc._channel", "grpc._interceptor", "grpc._plugin_wrapping", "grpc._auth"):
        with contextlib.suppress(ImportError):  # gRPC's own modules, which it imports with the first channel
            importlib.import_module(name)


def converse(wire: Wire) -> int:
    """Send the hello message, and answer the task's request.

    :return: the exit status.
    """
    wire.send(Hello.of_this_process().to_dict())
    request = wire.receive()
    if request is None:
        return 0
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    with contextlib.suppress(OSError):
        os.chdir(request["cwd"])
    give_up = partial(_give_up, wire)
    try:
        if request["do"] == "interrupt":
            named = {name: request[name] for name in ("session", "user", "tag", "is_own", "sweep")}
            wire.send({"interrupted": end_session(request["url"], **named, on_silence=give_up)})
            return 0
        session = AttemptSession(request["url"], on_silence=give_up)
        wire.send({"ready": {"session": session.id, "server": session.version, "client": _client_version()}})
    except Exception as error:
        wire.send({"error": _told(error)})
        return 1
    try:
        return _run(wire, session, request)
    finally:
        session.close()


def _give_up(wire: Wire) -> None:
    """End this process when the server has stopped answering: no call of PySpark's client has a deadline."""
    with contextlib.suppress(OSError):
        wire.send({"error": f"the server {has_not_answered()}"})
    os._exit(1)


def _client_version() -> str:
    import pyspark

    return pyspark.__version__


def _run(wire: Wire, session: AttemptSession, opened: Mapping[str, Any]) -> int:
    request = wire.receive()
    if request is None:
        return 0
    finish = _capture(wire)
    over = threading.Event()
    tag = opened["tag"]
    session.spark.addTag(tag)
    threading.Thread(target=_end_with, args=(wire, session, tag, over), daemon=True, name="task").start()
    session.keep_apart()
    answer: dict[str, Any] = {"done": True}
    try:
        pin(session.spark, opened["conf"])
        _import_from(session.spark, [Path(path) for path in request["files"]])
        secrets.give(request.get("secrets", {}))
        run_job(session.spark, Job.from_json(request["job"]))
    except BatchFailure as failure:
        sys.stderr.write(failure.traceback or f"{failure.error}\n")
        answer = {"error": failure.error}
    except Exception as error:
        answer = {"error": _told(error)}
    # Before the answer: a task that gets no answer knows that cached frames may be left, and sweeps (see end_session).
    with contextlib.suppress(Exception):
        session.drop_cached()
    over.set()
    finish()
    wire.send(answer)
    return 0 if "done" in answer else 1


def _import_from(spark: Any, files: list[Path]) -> None:
    """Make the user's files importable: in this process at once, and in Python workers of the server before the first
    Python function is sent there.

    A session that was sent a file gets a class loader of its own, for which Spark compiles its generated code again: a
    fifth of a small batch's time, which a transform without Python functions need not spend.
    """
    for path in files:
        where = str(path.parent if path.suffix == ".py" else path)
        if where not in sys.path:
            sys.path.insert(0, where)
        if path.suffix == ".py":
            # Otherwise the user's import would return the module that the runner has loaded under that name.
            sys.modules.pop(path.stem, None)
    importlib.invalidate_caches()
    waiting = [str(path) for path in files]
    # PySpark's client sends every function, table function and data source through this one method.
    serializer: Any = importlib.import_module("pyspark.serializers").CloudPickleSerializer
    dumps = serializer.dumps

    def dumps_after_files(self: Any, what: Any) -> Any:
        sent, waiting[:] = list(waiting), []
        if sent:
            spark.addArtifacts(*sent, pyfile=True)
        return dumps(self, what)

    serializer.dumps = dumps_after_files


def _end_with(wire: Wire, session: AttemptSession, tag: str, over: threading.Event) -> None:
    """End this process when the task has gone, as after ``kill -9``: nothing that the attempt writes later is used."""
    wire.receive()
    if over.is_set():
        return
    threading.Timer(_INTERRUPT_SECONDS, os._exit, [1]).start()
    for end in (lambda: session.spark.interruptTag(tag), session.drop_cached, session.close):
        with contextlib.suppress(Exception):
            end()
    os._exit(1)


def _capture(wire: Wire) -> Callable[[], None]:
    """Send the text that this process prints and logs to the task, line by line.

    :return: a function that sends the rest and stops the sending.
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


def _told(error: Exception) -> str:
    text = mask(str(error).strip())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def main(arguments: list[str]) -> int:
    """Serve one conversation.

    :param arguments: the attempt's tag, by which this process is found, and the number of the socket's file descriptor.
    """
    wire = Wire(socket.socket(fileno=int(arguments[1])))
    load()
    status = converse(wire)
    # Threads of gRPC may still be waiting for the server.
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
