"""A Spark Connect server in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 120.0


@contextmanager
def connect_server(folder: Path, settings: Mapping[str, Any] | None = None) -> Iterator[str]:
    """:param folder: its working directory and its log.
    :param settings: of Spark.
    :return: the server's URL.
    """
    port = free_port()
    chosen = {
        "spark.connect.grpc.binding.port": port,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.log.level": "WARN",
        **(settings or {}),
    }
    command = ["spark-submit", "--master", "local[1]"]
    command += [part for key, value in chosen.items() for part in ("--conf", f"{key}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    with served(command, port, folder / "server.log"):
        yield f"sc://127.0.0.1:{port}"


@contextmanager
def served(command: Sequence[str], port: int, log: Path) -> Iterator[None]:
    """A server that listens, in the folder of its log, until the block ends."""
    with log.open("wb") as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=log.parent,
        )
    try:
        listening(port, process, log)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def listening(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server listens."""
    deadline = time.monotonic() + SECONDS
    while True:
        assert process.poll() is None, log.read_text()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < deadline, log.read_text()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.2)
