"""A reader beside publishes, replays, kills and zombies sees each batch once, at every read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.engine import TOP
from tests.chaos.world import World


@pytest.mark.slow
def test_a_reader_sees_each_batch_once_at_every_read(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-m", "tests.chaos.reader", str(tmp_path / "lake")]
    with subprocess.Popen(command, cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reader:
        try:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "reading\n"
            tally = World(tmp_path, seed="reader").play(runs=8)
            (tmp_path / "lake" / "_stop").touch()
            output, errors = reader.communicate(timeout=60)
        finally:
            # A world that breaks down must show its error: leaving the block waits for the reader.
            reader.kill()
    assert reader.returncode == 0, errors
    assert not tally.bad, tally.text()
    assert tally.counts["replays"] > 0
    assert int(output) > tally.counts["batches"]
