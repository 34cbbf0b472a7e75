"""A letter is run again once, whatever became of the entry that says so: retention, a replay that publishes meanwhile,
a checkpoint that was restored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.execution.dead_letters import execution_of, replaying
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.sinks.file import FileSink
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.maintaining import applied, rewind
from tests.execution.test_dead_letters import Checked, OfLetters, refusing
from tests.execution.world import CODE, KEY, World, run_identity

REFUSED = "dead_letter"


def again(world: World) -> Execution:
    world.clock += 1
    return execution_of(replaying(world.pipeline, "mend.py:mend"), world.checkpoint, clock_ms=world._tick)


def replay(world: World, number: int, *refused: int, **engine: Any) -> None:
    """All letters are run again, and these are refused once more."""
    world.expire_leases()
    engine = {"refuse": lambda row: REFUSED if row["id"] in refused else None, **engine}
    again(world).run(run=run_identity(number), engine=OfLetters(**engine), code=CODE, transform=None)


def live(world: World, number: int, *refused: int, clear_number: int = 0) -> None:
    verdicts = {row: REFUSED if row in refused else None for row in range(20)}
    world.run(number, refusing(verdicts), clear_number=clear_number)


def ids(world: World) -> list[int]:
    """Of all lanes."""
    return sorted(
        json.loads(line)["id"]
        for file in (world.root / "lake").glob("lane=*/batch_id=*/*.json")
        for line in file.read_text().splitlines()
    )


def planned(world: World, lane: str = "dead-letters") -> list[int]:
    return list(world.checkpoint.lane(lane).offset_log.ids())


class TestRetention:
    def test_letters_that_were_run_again_are_not_forgotten_before_their_batch(self, tmp_path: Path) -> None:
        world = Checked(tmp_path, min_batches_to_retain=2)
        world.land(1, 2, 5)
        live(world, 0, 2, 5)
        for number in range(10, 15):
            replay(world, number, 5)
            world.janitor()
        assert ids(world) == [1, 2]
        with pytest.raises(CheckpointError, match="were run again as batch dead-letters/0"):
            live(world, 0, 2, 5, clear_number=1)
        assert ids(world) == [1, 2]

    def test_but_with_it(self, tmp_path: Path) -> None:
        world = Checked(tmp_path, min_batches_to_retain=3)
        world.land(1, 2, 5)
        live(world, 0, 2, 5)
        for number in range(10, 17):
            replay(world, number, 5)
        for number in range(1, 5):
            world.land(number + 5)
            live(world, number)
        assert planned(world, "live") == [2, 3, 4]
        world.janitor()
        assert planned(world) == [4, 5, 6]
        applied(world, rewind(3))  # what is in the table, and no longer in the logs, is in nobody's way
        live(world, 5)
        replay(world, 17, 5)
        assert ids(world) == [1, 2, 6, 7, 8, 9]


@pytest.fixture
def world(tmp_path: Path) -> Checked:
    """One batch, of which 2 is a dead letter."""
    world = Checked(tmp_path)
    world.land(1, 2, 3)
    live(world, 0, 2)
    return world


class TestReplays:
    def test_a_clear_that_is_refused_leaves_no_request(self, tmp_path: Path) -> None:
        world = Checked(tmp_path, min_batches_to_retain=2)
        world.land(1, 2, 3)
        live(world, 0, 2)
        replay(world, 10)
        with pytest.raises(CheckpointError, match="live/0 is not replayed"):
            live(world, 0, 2, clear_number=1)
        assert world.checkpoint.replays.all(KEY) == []
        for number in range(1, 4):
            world.land(number + 5)
            live(world, number)
        assert planned(world, "live") == [2, 3]

    def test_nor_does_a_backfill_that_would_replay_what_others_have(self, tmp_path: Path) -> None:
        letters = FileSink(str(tmp_path / "letters"), format="json")
        world = IntervalWorld(
            tmp_path, on_overlap="replay", dead_letters=letters, expect={"id > 0": "drop", "version = 1": "dead_letter"}
        )
        world.land_at(0.5, 1, 2)
        live(world, 0, 2)
        replay(world, 10)
        with pytest.raises(CheckpointError, match="live/0 is not replayed"):
            world.backfill(hour(0), 11)
        assert world.checkpoint.replays.all(KEY) == []
        assert ids(world) == [1, 2]
