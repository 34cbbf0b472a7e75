"""A few kills of ``make chaos`` at a real scheduler's task, a real Spark driver and a janitor. ``make chaos`` itself
starts an Airflow of its own, whose scheduler, supervisors and triggerer die too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.real.deck import DRIVER, TASK, Card
from tests.chaos.real.watched import BEGUN
from tests.chaos.real.world import RealWorld
from tests.scheduler.shop import SECONDS, Shop

# Its waits end when what they wait for comes; on a machine that is busy with other things that takes minutes.
pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.timeout(1200)]


def test_a_pipeline_lives_through_kills_and_a_janitor_leaves_nothing(shop: Shop, tmp_path: Path) -> None:
    cards = [Card(victim=DRIVER, moment=BEGUN), Card(victim=TASK, point="after rename")]
    before = set(shop.airflow.dags.glob("*.py"))
    try:
        world = RealWorld(tmp_path, seed="short", pipelines=1, airflow=shop.airflow, patience=SECONDS)
        tally = world.play(kills=4, cards=cards)
    finally:
        # Their folder goes with this test, and a file that finds it gone is an import error to those that follow.
        for file in set(shop.airflow.dags.glob("*.py")) - before:
            file.unlink()
    assert not tally.bad, tally.text()
    assert tally.real[f"{DRIVER} at {BEGUN}"] == 1
    assert tally.real[f"{TASK} at after rename"] == 1
    assert tally.real.total() >= 3, "a task that nobody tried again, too"
    assert tally.counts["batches"] >= 2
