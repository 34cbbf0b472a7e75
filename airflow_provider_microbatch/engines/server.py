"""A warm engine on this machine: a local Spark Connect server and a resident runner, started and stopped as one.

The engine's folder is this user's alone (mode 0700). It holds ``engine.json`` (what runs), ``connection.json`` (for
Airflow; it has the server's port and token, and both stay when the engine is started again, unless another process has
taken the port), the logs of both processes and the runner's socket. Both processes have the engine's tag among their
arguments: a process that carries the tag belongs to the engine, whatever a file says.
The tag is on record before any process is started, so that the next start ends what a killed start has left.
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
from airflow_provider_microbatch.engines.packaging import read_properties, render_properties
from airflow_provider_microbatch.engines.spark_connect.wire import SESSION_SECONDS, call
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.runtime.listening import refusal, stranger_at
from airflow_provider_microbatch.runtime.session import BOOT, boot_id
from airflow_provider_microbatch.settings import is_private
from airflow_provider_microbatch.sinks.file.lock import locked

CONNECTION = "connection.json"
CONN_ID = "spark_connect_default"
_STATE = "engine.json"
_TAG = "spark.microbatch.engine"
_RUNNER = "airflow_provider_microbatch.engines.spark_connect.runner"
_START_SECONDS = 120.0
_ALONE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.authenticate": "true",
}
"""With a local master only the server itself talks to its driver and block manager. Executors on other hosts have to
reach them too; for such a master ``--conf`` must say how."""
_SOCKET_PATH_BYTES = 100
_LOWEST_PORT = 15000
"""Ports below are those of well-known services, Spark's own among them."""
_TRIES = 100


@dataclass(frozen=True, kw_only=True)
class Running:
    """A warm engine.

    :param tag: the tag in the arguments of both processes.
    :param url: the URL to which clients connect; without the token.
    :param master: Spark's master URL.
    :param spark: version of Spark.
    :param server_pid: process id of the server's JVM.
    :param runner_pid: process id of the resident runner.
    :param started: start time, seconds since the epoch.
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
    """The result of :func:`status`.

    :param running: the engine; None if none runs.
    :param attempts: number of attempts that run now; each has a session of its own.
    """

    running: Running | None
    attempts: int = 0


def status(folder: Path) -> Status:
    """The state of the engine in ``folder``. An engine of which one process has died counts as none."""
    found = _recorded(folder)
    if found is None or not all(_carries(pid, found.tag) for pid in (found.server_pid, found.runner_pid)):
        return Status(running=None)
    wire = call(folder)
    if wire is None:
        return Status(running=None)
    try:
        own = (wire.receive(seconds=10) or {}).get("pid")
        attempts = [child for child in psutil.Process(found.runner_pid).children() if child.pid != own]
    except (OSError, psutil.Error):
        return Status(running=None)
    finally:
        wire.close()
    return Status(running=found, attempts=len(attempts))


def start(folder: Path, *, master: str = "local[*]", conf: Mapping[str, str] | None = None) -> tuple[Running, bool]:
    """Start an engine, and wait until it answers.

    :param folder: the engine's folder; made if it does not exist.
    :param master: Spark's master URL.
    :param conf: Spark settings of the server; they travel in a private file.
    :return: the engine, and whether this call started it; False means that the engine was running already.
    :raises EngineError: if the engine does not start; none of its processes runs then.
    """
    check_versions()
    with _locked(folder):
        running = status(folder).running
        if running is not None:
            return running, False
        _end(folder)
        environment = launch_environment(os.environ, extra={}, binary=SPARK_SUBMIT, is_local=master.startswith("local"))
        tag = f"microbatch-engine-{uuid.uuid4()}"
        port, token = _address(folder)
        settings = {
            "spark.ui.enabled": "false",
            "spark.log.level": "WARN",
            "spark.connect.session.manager.defaultSessionTimeout": f"{SESSION_SECONDS:.0f}s",
            **(_ALONE if master.startswith("local") else {}),
            BOOT: boot_id(),
            **(conf or {}),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
        }
        base = spark_defaults(environment)
        inherited = f"{read_properties(base)}\n" if base else ""
        _write(folder / _STATE, json.dumps({"tag": tag}) + "\n")
        _write(folder / "server.properties", inherited + render_properties(settings))
        command = [SPARK_SUBMIT, "--master", master, "--conf", f"{_TAG}={tag}"]
        command += ["--properties-file", str(folder / "server.properties")]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        try:
            # Every user of this machine can reach a port of a loopback address, so the server asks for a token.
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
            # The record stays: a process that is just being started may only be found by the next start.
            processes.end_all(tag, grace=5)
            raise
        return running, True


def address(folder: Path) -> tuple[int, str] | None:
    """Port and token of the engine that is or was in ``folder``; None if there was none."""
    found = _read(folder / CONNECTION).get(CONN_ID)
    port, token = (found.get("port"), found.get("password")) if isinstance(found, dict) else (None, None)
    return (port, token) if isinstance(port, int) and isinstance(token, str) and token else None


def stop(folder: Path) -> bool:
    """End the engine in ``folder``; none of its processes runs when this returns. Attempts that run on the engine fail.

    :return: whether any process was running.
    """
    if not folder.exists():
        return False
    with _locked(folder):
        return _end(folder)


def _end(folder: Path) -> bool:
    tag = _read(folder / _STATE).get("tag")
    try:
        # Any other text in place of the tag might be in the arguments of other processes too.
        ended = processes.is_engine_tag(tag) and processes.end_all(tag, grace=10)
    except TimeoutError as error:
        raise EngineError(f"the engine in {folder} could not be stopped: {error}.") from error
    for name in (_STATE, "server.properties", "runner.sock"):
        (folder / name).unlink(missing_ok=True)
    return ended


def _recorded(folder: Path) -> Running | None:
    try:
        return Running(**_read(folder / _STATE))
    except TypeError:
        return None  # a start that was interrupted after it had recorded the tag


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _address(folder: Path) -> tuple[int, str]:
    """Port and token of the engine that was here before, so that Airflow's connection to it stays right. Both are new
    if another process has taken that port: the process may have heard the token."""
    before = address(folder)
    if before is not None and _is_free(before[0]):
        return before
    # A start that follows a failed one must not use the old port and token again, even if the port is free by then.
    (folder / CONNECTION).unlink(missing_ok=True)
    return _free_port(), secrets.token_urlsafe(32)


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
    if why := refusal(url):
        wire.close()
        raise EngineError(f"the engine cannot be used: {why}")
    own: dict[str, Any] = {}
    try:
        own = wire.receive(seconds=_START_SECONDS) or {}
        wire.send({"do": "open", "url": url, "environment": dict(os.environ), "cwd": str(folder)})
        answer = wire.receive(seconds=_START_SECONDS) or {}
    except OSError as error:
        raise EngineError(f"the engine does not answer: {error}; see the logs in {folder}.") from error
    finally:
        wire.close()
    # The fork that answered here would be counted as an attempt until it has ended.
    while isinstance(own.get("pid"), int) and psutil.pid_exists(own["pid"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    if "ready" not in answer:
        raise EngineError(f"the server cannot be used: {answer.get('error')}; see the logs in {folder}.")
    return str(answer["ready"]["server"])


def _spawn(command: list[str], log: Path, environment: Mapping[str, str], folder: Path) -> subprocess.Popen[bytes]:
    log.unlink(missing_ok=True)
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=folder,
            env=dict(environment), start_new_session=True,
        )  # fmt: skip


def _tail(folder: Path, name: str) -> str:
    return "\n".join((folder / f"{name}.log").read_text(errors="replace").splitlines()[-15:])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # The server sets the same option: connections of the earlier engine may still be closing.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
    # A listener of another user at ::1 does not keep the server from 127.0.0.1, but clients look up localhost at both.
    return stranger_at(port) is None


def _free_port() -> int:
    """A port that the kernel does not assign by itself: an assigned port could be taken by any connection that is
    opened while the engine is stopped, and Airflow's connection to the engine would then be wrong."""
    below, above = _given_ports()
    ports = [*range(_LOWEST_PORT, below), *range(above + 1, 65536)]
    for _ in range(_TRIES if ports else 0):
        port: int = secrets.choice(ports)
        if _is_free(port):
            return port
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _given_ports() -> tuple[int, int]:
    """First and last of the ports that the kernel assigns to a socket that names no port."""
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
    except OSError:
        return 32768, 65535  # 65535 ends IANA's dynamic range, 32768 begins Linux's
    return int(first), int(last)


def _write(path: Path, text: str) -> None:
    """Write a private file; the file is replaced as a whole or not at all."""
    hidden = path.with_name(f".{path.name}")
    hidden.unlink(missing_ok=True)
    with os.fdopen(os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    hidden.replace(path)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: one start or stop at a time."""
    if len(os.fsencode(folder)) > _SOCKET_PATH_BYTES - len("/runner.sock"):
        raise EngineError(f"the path {folder} is too long for a socket in it. Name a shorter one: --dir")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_private(folder):
            raise EngineError(f"{folder} must be this user's alone, as tokens lie in it: chmod 700 {folder}, or --dir")
        with locked(folder / "lock", seconds=2 * _START_SECONDS):
            yield
    except OSError as error:
        raise EngineError(f"the engine's folder {folder} cannot be used: {error}.") from error
