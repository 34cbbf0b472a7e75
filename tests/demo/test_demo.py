"""The demo as `make demo` runs it, without a terminal: a real Airflow and a real Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from demo.local_airflow import COMPONENTS
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 900.0


class Run:
    """A demo in a process of its own, and whatever it starts: found by a word in their environment."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.home = home
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "demo", *arguments],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(home), "MICROBATCH_DEMO_TEST": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def until(self, text: str) -> None:
        """Read what it prints until ``text`` is in a line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if text in line:
                return
        raise AssertionError(f"the demo ended and never said {text!r}")

    def end(self) -> tuple[int, str]:
        """Exit status and what it printed since."""
        said, _ = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, said

    def alive(self) -> list[psutil.Process]:
        """Processes of this demo."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("MICROBATCH_DEMO_TEST") == str(self.home):
                    found.append(process)
        return found

    def close(self) -> None:
        for process in self.alive():
            with suppress(psutil.Error):
                process.kill()
        self.process.wait()


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: the names of sockets below it may have 100 characters at most."""
    with tempfile.TemporaryDirectory(prefix="microbatch-test-") as folder:
        yield Path(folder)


@pytest.mark.airflow
@pytest.mark.spark
@pytest.mark.timeout(SECONDS)
def test_a_batch_recovers_from_sigkill_and_every_claim_holds(home: Path) -> None:
    demo = Run(home, "--batches", "2")
    try:
        status, said = demo.end()
        assert status == 0, said
        assert "killed the task of batch 1 mid-run" in said
        table = [line.split() for line in said.splitlines() if line.split()[1:2] == ["committed"]]
        assert [(row[0], row[2]) for row in table] == [("0", "1"), ("1", "2")]
        assert "ok    120 rows in the lake, 120 rows landed" in said
        assert "To look at the grid, run this in a terminal" in said
        assert "WRONG" not in said
        assert demo.alive() == []
        assert list(home.iterdir()) == []
    finally:
        demo.close()


@pytest.mark.airflow
@pytest.mark.timeout(SECONDS)
def test_sigterm_stops_it_at_any_time_and_leaves_no_process(home: Path) -> None:
    """In the middle of the start of Airflow's components, which are at starting others; the demo that comes to its end
    stops those that are up."""
    demo = Run(home)
    try:
        demo.until("starting Airflow")
        wait_until(lambda: len(demo.alive()) > len(COMPONENTS))
        demo.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        status, said = demo.end()
        assert status == 130, said
        assert time.monotonic() - began < 60
        assert demo.alive() == []
        assert list(home.iterdir()) == []
    finally:
        demo.close()


def test_missing_java_is_one_line(home: Path) -> None:
    command = [sys.executable, "-m", "demo"]
    without = {**os.environ, "JAVA_HOME": str(home), "TMPDIR": str(home)}
    done = subprocess.run(command, cwd=ROOT, env=without, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "install" in line
    assert list(home.iterdir()) == []
