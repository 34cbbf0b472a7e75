"""A little of ``make chaos SYSTEM=state``: a real driver dies, and the checks see what is wrong."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.engine import TOP
from tests.chaos.state.setting import StateSetting
from tests.chaos.state.task import UNINTERRUPTED
from tests.chaos.state.world import StateWorld
from tests.chaos.task import Task
from tests.chaos.test_chaos import ENVIRONMENT

ONE_BATCH = """
import sys
from pathlib import Path
from tests.chaos.state.task import prepare
from tests.chaos.state.world import StateWorld

root = Path(sys.argv[1])
prepare(root)
world = StateWorld(root, seed="0")
assert world.setting.kind == "totals", world.setting
world.setting.save()
world.land()
order = {"root": str(root), "number": 0, "clear": 0, "version": 0}
killed = world.wait(world.start(order, engine={"point": "a half of the state", "victim": "driver"}), expected=True)
assert [one["outcome"] for one in killed] == ["error"], killed
(ended,) = world.wait(world.start(order), expected=False)
assert ended["outcome"] == "committed", ended
world.check()
print(world.tally.text())
sys.exit(world.tally.bad or not world.tally.counts["rows in the table"])
"""


@pytest.mark.spark
@pytest.mark.slow
def test_the_table_is_that_of_an_uninterrupted_run(tmp_path: Path) -> None:
    """In a process of its own: its tasks are forked, and a JVM must not be."""
    command = [sys.executable, "-c", ONE_BATCH, str(tmp_path)]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "tasks.log").read_text()
    assert (tmp_path / "kills.log").read_text() == "driver, driver at a half of the state\n"


class _Told(StateWorld):
    """The uninterrupted run has been: its table is there."""

    def task(self, order: dict[str, object], report: Path) -> Task:
        report.write_text('{"outcome": "committed"}')
        return Task({}, report=report, live=lambda _: {"outcome": "committed"})


def test_the_check_sees_a_row_that_is_lost_or_doubled(tmp_path: Path) -> None:
    world = _Told(tmp_path, seed="1")
    world.setting.save()
    wanted = StateSetting(**{**vars(world.setting), "folder": UNINTERRUPTED})
    for setting, rows in ((wanted, ["a", "b"]), (world.setting, ["b", "b"])):
        batch = setting.place / "lake" / "lane=live" / "batch_id=0"
        batch.mkdir(parents=True)
        (batch / "part-0").write_text("\n".join(rows))

    world.check()

    assert world.tally.wrong["rows lost"] == 1
    assert world.tally.wrong["rows doubled"] == 1


class _Killed(StateWorld):
    """The uninterrupted run is killed."""

    def task(self, order: dict[str, object], report: Path) -> Task:
        return Task({}, report=report, live=lambda _: os.kill(os.getpid(), signal.SIGKILL) or {})


def test_a_table_that_was_compared_with_nothing_is_not_good(tmp_path: Path) -> None:
    world = _Killed(tmp_path, seed="1")
    world.setting.save()

    world.check()

    assert "compared with nothing" in world.tally.failures[-1]
    assert world.tally.bad


def test_what_lands_is_the_same_for_a_seed(tmp_path: Path) -> None:
    texts = []
    for name in ("one", "other"):
        setting = StateSetting(root=str(tmp_path / name), sources=("orders",))
        (tmp_path / name).mkdir()
        setting.save()
        setting.land_unit(7, random.Random(3))
        texts.append((tmp_path / name / "landing" / "orders" / "000007.json").read_text())

    assert texts[0] == texts[1] != ""
