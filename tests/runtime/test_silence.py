"""No statement waits for ever for a Spark Connect server that accepts what it is told and does not answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.mute_server import mute_server

pytestmark = pytest.mark.slow

SECONDS = 20
"""For a process to end. It takes two; one that waits for the server never ends."""

CLIENT = """
import signal, sys, uuid
from airflow_provider_microbatch.runtime import silence
from airflow_provider_microbatch.runtime.statements import run_by_connect

class Timeout(BaseException): pass

def execution_timeout(*_): raise Timeout

signal.signal(signal.SIGUSR1, execution_timeout)
url, ask, silent = sys.argv[1:]
silence.ASK_SECONDS, silence.SILENT_SECONDS, silence.CLOSE_SECONDS = float(ask), float(silent), 0.5
try:
    run_by_connect(url, ["SELECT 1"], session=str(uuid.uuid4()), user="me")
except BaseException as error:
    print(type(error).__name__, error)
"""


@contextmanager
def client(url: str, *, ask: float, silent: float) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, url, str(ask), str(silent)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_statement_ends_when_its_server_falls_silent() -> None:
    with mute_server() as server, client(server.url, ask=0.1, silent=1) as process:
        server.wait_for("Config")
        said, _ = process.communicate(timeout=SECONDS)
    assert said == f"StatementFailure the Spark Connect server {server.url} has not answered for 1 seconds\n"
    assert process.returncode == 0


def test_a_statement_ends_when_its_server_falls_silent_while_it_runs() -> None:
    with mute_server("Config") as server, client(server.url, ask=0.1, silent=1) as process:
        server.wait_for("ExecutePlan")
        server.answers.clear()
        said, _ = process.communicate(timeout=SECONDS)
    assert said == f"StatementFailure the Spark Connect server {server.url} has not answered for 1 seconds\n"
    assert process.returncode == 0


def test_a_statement_that_takes_long_is_waited_for_until_airflow_ends_it() -> None:
    """The server says nothing to it, but answers who asks. What Airflow raises gets through, and the process ends:
    neither the session's end, nor PySpark's threads and finalizers, wait for an answer."""
    with mute_server("Config") as server, client(server.url, ask=0.05, silent=0.5) as process:
        server.wait_for("ExecutePlan")
        server.wait_for("Config", times=server.heard["Config"] + 20)
        process.send_signal(signal.SIGUSR1)
        said, _ = process.communicate(timeout=SECONDS)
        assert server.heard["ReleaseSession"] == 1
    assert said == "Timeout \n"
    assert process.returncode == 0
