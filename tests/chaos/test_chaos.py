"""A short run of ``make chaos`` with fixed seeds: tasks, engines and zombies die and wake up, and nothing is lost,
doubled or left over."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from airflow_provider_microbatch.engines import processes
from tests.chaos.checks import check
from tests.chaos.engine import TOP
from tests.chaos.tally import Tally, total
from tests.chaos.world import World
from tests.support.waiting import wait_until

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(TOP)}


def run_chaos(folder: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], Tally]:
    """``make chaos`` as a person runs it, and the figures it added to its file."""
    added = folder / "runs.jsonl"
    command = [sys.executable, "-m", "tests.chaos", "--folder", str(folder), "--out", str(added), *arguments]
    done = subprocess.run(
        command,
        cwd=TOP,
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    return done, total(added)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "seed", "worlds"),
    [("files-on-posix", 11, 2), ("files-in-sqlite", 12, 1), ("files-into-a-database", 14, 1)],
)
def test_nothing_is_lost_doubled_or_left_over(tmp_path: Path, system: str, seed: int, worlds: int) -> None:
    among = ("--system", system, "--worlds", str(worlds), "--workers", "1", "--seed", str(seed))
    done, tally = run_chaos(tmp_path, *among)
    assert done.returncode == 0, done.stdout + done.stderr
    assert tally.counts["worlds"] == worlds
    assert tally.counts["replays"] > worlds / 2
    # Which moments are hit is the kernel's choice too; that there were many of many kinds is what makes the run count.
    assert tally.total > 2 * worlds
    assert len(tally.kills) > worlds


@pytest.mark.slow
def test_stopped_in_the_middle_it_leaves_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.chaos", "--folder", str(tmp_path), "--kills", "1000", "--real", "0"]
    driver = subprocess.Popen(command, cwd=TOP, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)

    def started() -> list[psutil.Process]:
        return processes.carrying(str(tmp_path))

    def is_engine(process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return "tests.chaos.engine_process" in process.cmdline()
        return False

    wait_until(lambda: driver.poll() is not None or any(is_engine(process) for process in started()), seconds=60)
    assert driver.poll() is None
    driver.terminate()
    assert driver.wait(timeout=60) == 130
    assert started() == []


@pytest.mark.slow
def test_the_checks_see_what_is_wrong(tmp_path: Path) -> None:
    """A world that is sound is spoilt afterwards, one way after the other."""
    world = World(tmp_path / "world", seed="sound")
    world.root.mkdir()
    assert not world.play(runs=3).bad
    batches = sorted((world.root / "lake" / "lane=live").iterdir())
    part = next(path for path in batches[0].glob("part-*") if path.stat().st_size)
    text = part.read_text()

    def wrong() -> dict[str, int]:
        tally = Tally()
        check(world.setting, landed=world.landed, newest=world.newest, tally=tally)
        return dict(tally.wrong)

    row = text.splitlines(keepends=True)[0]
    part.write_text(text.replace(row, "", 1))
    assert wrong() == {"rows lost": 1}
    part.write_text(text + row)
    assert wrong() == {"rows doubled": 1}
    part.write_text(text.replace('"version": ', '"version": 9', 1))
    assert wrong() == {"wrong states": 1}
    part.write_text(text)
    assert wrong() == {}
    (world.root / "checkpoint" / "commits" / "0").unlink()
    assert wrong()["wrong states"] > 0
