"""No attempt waits for ever for a Spark Connect server that accepts what it is told and does not answer."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from airflow_provider_microbatch.engines.spark_connect.wire import Wire
from tests.support.mute_server import mute_server

pytestmark = pytest.mark.slow

SECONDS = 20
"""For a process to end. It takes two; one that waits for the server never ends."""

CHILD = """
import sys
from airflow_provider_microbatch.engines.spark_connect.child import main
from airflow_provider_microbatch.runtime import silence
silence.ASK_SECONDS, silence.SILENT_SECONDS, silence.CLOSE_SECONDS = 0.1, 1.0, 0.5
main(["microbatch", sys.argv[1]])
"""


@contextmanager
def opened(url: str) -> Iterator[tuple[subprocess.Popen[bytes], Wire]]:
    """The process of an attempt, which was told to open a session."""
    ours, theirs = socket.socketpair()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with theirs:
        number = theirs.fileno()
        process = subprocess.Popen([sys.executable, "-c", CHILD, str(number)], env=environment, pass_fds=[number])
    wire = Wire(ours)
    try:
        assert wire.receive(seconds=SECONDS) is not None
        wire.send({"do": "open", "url": f"{url}/;user_id=me", "environment": environment, "cwd": "/"})
        yield process, wire
    finally:
        wire.close()
        process.kill()
        process.wait()


def test_an_attempt_is_not_opened_at_a_server_that_is_silent() -> None:
    with mute_server() as server, opened(server.url) as (process, wire):
        assert wire.receive(seconds=SECONDS) == {"error": "the server has not answered for 1 seconds"}
        assert process.wait(SECONDS) == 1


def test_an_attempt_ends_when_its_server_falls_silent() -> None:
    with mute_server("AnalyzePlan") as server, opened(server.url) as (process, wire):
        assert "ready" in (wire.receive(seconds=SECONDS) or {})
        assert wire.receive(seconds=SECONDS) == {"error": "the server has not answered for 1 seconds"}
        assert process.wait(SECONDS) == 1


def test_the_end_of_an_attempt_waits_for_no_answer() -> None:
    with mute_server("AnalyzePlan", "Config") as server, opened(server.url) as (process, wire):
        assert "ready" in (wire.receive(seconds=SECONDS) or {})
        wire.close()
        assert process.wait(SECONDS) == 0
        assert server.heard["ReleaseSession"] == 1
