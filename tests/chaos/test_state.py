"""A short run of ``make chaos SYSTEM=state`` with a fixed seed: real drivers of a stateful pipeline die."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.state.setting import StateSetting
from tests.chaos.state.task import UNINTERRUPTED
from tests.chaos.state.world import StateWorld
from tests.chaos.task import Task
from tests.chaos.test_chaos import run_chaos


@pytest.mark.spark
@pytest.mark.slow
def test_the_table_is_that_of_an_uninterrupted_run(tmp_path: Path) -> None:
    among = ("--system", "state", "--worlds", "1", "--workers", "1", "--runs", "1", "--seed", "5")
    done, tally = run_chaos(tmp_path, *among)
    assert done.returncode == 0, done.stdout + done.stderr
    assert tally.counts["worlds"] == 1
    assert tally.counts["rows in the table"] > 0
    # Which moments are hit is the kernel's choice too.
    assert any("driver at" in point for point in tally.kills)


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


def test_what_lands_is_the_same_for_a_seed(tmp_path: Path) -> None:
    texts = []
    for name in ("one", "other"):
        setting = StateSetting(root=str(tmp_path / name), sources=("orders",))
        (tmp_path / name).mkdir()
        setting.save()
        setting.land_unit(7, random.Random(3))
        texts.append((tmp_path / name / "landing" / "orders" / "000007.json").read_text())

    assert texts[0] == texts[1] != ""
