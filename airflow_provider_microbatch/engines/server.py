"""A warm engine on this machine: a local Spark Connect server and a resident runner, started and stopped as one.

Its folder is this user's alone (mode 0700) and holds ``engine.json`` (what runs), ``connection.json`` (for Airflow; it
has the server's token), the logs of both processes and the runner's socket. Both have the engine's tag among their
arguments: what carries it is the engine, whatever a file says.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped,unused-ignore]

from airflow_provider_microbatch.engines import processes
from airflow_provider_microbatch.engines.environment import (
    SPARK_SUBMIT,
    check_versions,
    launch_environment,
    spark_defaults,
)
from airflow_provider_microbatch.engines.packaging import render_properties
from airflow_provider_microbatch.engines.spark_connect_wire import SESSION_SECONDS, call, is_private
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.sinks.file_posix import locked

CONNECTION = "connection.json"
CONN_ID = "spark_connect_default"
_STATE = "engine.json"
_TAG = "spark.microbatch.engine"
_RUNNER = "airflow_provider_microbatch.engines.spark_connect_runner"
_START_SECONDS = 120.0
_SOCKET_PATH_BYTES = 100


@dataclass(frozen=True, kw_only=True)
class Running:
    """A warm engine.

    :param tag: in the arguments of both processes.
    :param url: where clients connect; without the token.
    :param master: Spark's.
    :param spark: its version.
    :param server_pid: the JVM.
    :param runner_pid: the resident runner.
    :param started: seconds since the epoch.
    """

    tag: str
    url: str
    master: str
    spark: str
    server_pid: int
    runner_pid: int
    started: float


@dataclass(frozen=True, kw_only=True)
class Status:
    """What :func:`status` found.

    :param running: the engine; None if none runs.
    :param sessions: used in the last ten minutes.
    :param attempts: that run now.
    """

    running: Running | None
    sessions: int = 0
    attempts: int = 0


def status(folder: Path) -> Status:
    """What runs there. An engine of which a part has died is none."""
    found = _recorded(folder)
    if found is None or not all(_carries(pid, found.tag) for pid in (found.server_pid, found.runner_pid)):
        return Status(running=None)
    wire = call(folder)
    if wire is None:
        return Status(running=None)
    try:
        own = (wire.receive(seconds=10) or {}).get("pid")
        wire.send({"do": "sessions"})
        sessions = int((wire.receive(seconds=10) or {}).get("sessions", 0))
        attempts = [child for child in psutil.Process(found.runner_pid).children() if child.pid != own]
    except (OSError, psutil.Error):
        return Status(running=None)
    finally:
        wire.close()
    return Status(running=found, sessions=sessions, attempts=len(attempts))


def start(folder: Path, *, master: str = "local[*]", conf: Mapping[str, str] | None = None) -> tuple[Running, bool]:
    """Start an engine, and wait until it answers.

    :param folder: its folder; made if it is not there.
    :param master: Spark's master.
    :param conf: Spark settings of the server; they travel in a private file.
    :return: the engine, and whether it was started now; False means that it ran already.
    :raises EngineError: if it does not start; nothing of it runs then.
    """
    check_versions()
    with _locked(folder):
        running = status(folder).running
        if running is not None:
            return running, False
        _end(folder)
        environment = launch_environment(os.environ, extra={}, binary=SPARK_SUBMIT, is_local=master.startswith("local"))
        tag, token, port = f"microbatch-engine-{uuid.uuid4()}", secrets.token_urlsafe(32), _free_port()
        settings = {
            "spark.ui.enabled": "false",
            "spark.log.level": "WARN",
            "spark.connect.session.manager.defaultSessionTimeout": f"{SESSION_SECONDS:.0f}s",
            **(conf or {}),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
        }
        base = spark_defaults(environment)
        inherited = f"{base.read_text(encoding='utf-8')}\n" if base else ""
        _write(folder / "server.properties", inherited + render_properties(settings))
        command = [SPARK_SUBMIT, "--master", master, "--conf", f"{_TAG}={tag}"]
        command += ["--properties-file", str(folder / "server.properties")]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        try:
            # The port of a loopback address is everybody's on this machine, so the server asks for a token.
            environment["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = token
            server = _spawn(command, folder / "server.log", environment, folder)
            runner = _spawn(
                [sys.executable, "-m", _RUNNER, str(folder), tag], folder / "runner.log", os.environ, folder
            )
            spark = _wait(folder, server, runner, url=f"sc://localhost:{port}/;token={token};user_id=microbatch")
            running = Running(
                tag=tag, url=f"sc://localhost:{port}", master=master, spark=spark, server_pid=server.pid,
                runner_pid=runner.pid, started=time.time(),
            )  # fmt: skip
            connection = {"conn_type": "spark_connect", "host": "localhost", "port": port, "password": token}
            connection["extra"] = json.dumps({"engine_dir": str(folder)})
            _write(folder / CONNECTION, json.dumps({CONN_ID: connection}, indent=1) + "\n")
            _write(folder / _STATE, json.dumps(asdict(running), indent=1) + "\n")
        except BaseException:
            processes.end_all(tag, grace=5)
            raise
        return running, True


def stop(folder: Path) -> bool:
    """End the engine in ``folder``; nothing of it runs when this returns. Attempts that run on it fail.

    :return: whether anything ran.
    """
    if not folder.exists():
        return False
    with _locked(folder):
        return _end(folder)


def _end(folder: Path) -> bool:
    found = _recorded(folder)
    try:
        ended = found is not None and processes.end_all(found.tag, grace=10)
    except TimeoutError as error:
        raise EngineError(f"the engine in {folder} could not be stopped: {error}.") from error
    for name in (_STATE, CONNECTION, "server.properties", "runner.sock"):
        (folder / name).unlink(missing_ok=True)
    return ended


def _recorded(folder: Path) -> Running | None:
    try:
        return Running(**json.loads((folder / _STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _carries(pid: int, tag: str) -> bool:
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and any(tag in argument for argument in process.cmdline())
    except psutil.Error:
        return False


def _wait(folder: Path, server: subprocess.Popen[bytes], runner: subprocess.Popen[bytes], *, url: str) -> str:
    """:return: Spark's version, as the server itself says through the runner."""
    deadline = time.monotonic() + _START_SECONDS
    port = int(url.partition("localhost:")[2].partition("/")[0])
    while not (_listens(port) and (wire := call(folder))):
        for process, name in ((server, "server"), (runner, "runner")):
            if process.poll() is not None:
                raise EngineError(f"the {name} ended at once; the end of {folder / name}.log:\n{_tail(folder, name)}")
        if time.monotonic() > deadline:
            raise EngineError(f"the engine did not answer in {_START_SECONDS:.0f} s; see the logs in {folder}.")
        time.sleep(0.1)
    try:
        wire.receive(seconds=_START_SECONDS)
        question: dict[str, Any] = {"do": "open", "url": url, "purpose": f"start {uuid.uuid4()}"}
        wire.send({**question, "environment": dict(os.environ), "cwd": str(folder)})
        answer = wire.receive(seconds=_START_SECONDS) or {}
    except OSError as error:
        raise EngineError(f"the engine does not answer: {error}; see the logs in {folder}.") from error
    finally:
        wire.close()
    if "ready" not in answer:
        raise EngineError(f"the server cannot be used: {answer.get('error')}; see the logs in {folder}.")
    return str(answer["ready"]["server"])


def _spawn(command: list[str], log: Path, environment: Mapping[str, str], folder: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=folder,
            env=dict(environment), start_new_session=True,
        )  # fmt: skip


def _tail(folder: Path, name: str) -> str:
    return "\n".join((folder / f"{name}.log").read_text(errors="replace").splitlines()[-15:])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _write(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One start or stop at a time."""
    if len(os.fsencode(folder)) > _SOCKET_PATH_BYTES - len("/runner.sock"):
        raise EngineError(f"the path {folder} is too long for a socket in it. Name a shorter one: --dir")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_private(folder):
            raise EngineError(f"{folder} must be this user's alone, as tokens lie in it: chmod 700 {folder}, or --dir")
        with locked(folder / "lock"):
            yield
    except OSError as error:
        raise EngineError(f"the engine's folder {folder} cannot be used: {error}.") from error
