"""How long files of state are kept, and what is said where they are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import CheckpointError, EngineError
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.runtime.streaming import SNAPSHOT_EVERY
from tests.state.counting import CountingWorld


def batches_with_state(world: CountingWorld) -> list[int]:
    return sorted(int(file.name.partition("_")[0]) - 1 for file in (world.root / "checkpoint" / "state").rglob("*_*"))


def make(world: CountingWorld, number: int) -> None:
    """A batch, and its file of state."""
    before = set(world.kept)
    world.batch(number, head=number + 1)
    (id,) = set(world.kept) - before
    folder = world.root / "checkpoint" / "state" / "0" / "0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{number + 1}_{id}.changelog").write_text("")


def test_state_is_kept_as_long_as_the_logs_keep_its_batch(tmp_path: Path) -> None:
    """What retention leaves, somebody may rewind to: without its state the pipeline would not go on from there."""
    world = CountingWorld(tmp_path, min_batches_to_retain=2)
    make(world, 0)
    unfinished = BatchKey(LIVE, 0), 7
    world.checkpoint.leases.begin(*unfinished, seconds=60)
    last = 2 * SNAPSHOT_EVERY
    for number in range(1, last):
        make(world, number)

    assert world.checkpoint.commit_log.ids() == list(range(last))
    assert batches_with_state(world) == list(range(last))
    world.checkpoint.leases.forget(*unfinished)
    make(world, last)
    assert world.checkpoint.commit_log.ids() == [last - 1, last]
    assert batches_with_state(world) == [last - 1, last]


def test_where_the_state_has_a_gap_the_newest_batch_before_it_is_named(tmp_path: Path) -> None:
    """A change is read with all changes since the last snapshot."""
    world = CountingWorld(tmp_path)
    for number in range(4):
        make(world, number)
    (gone,) = (tmp_path / "checkpoint" / "state").rglob("2_*")
    gone.unlink()
    world.come(5)

    def fail(job: Job) -> None:
        raise EngineError(f"{gone} does not exist")

    with pytest.raises(CheckpointError, match=rf"such as {gone.stem}: .* --to 0 --drop-output` goes back to batch 0"):
        world.run(4, world.engine(before_stage=fail))


def test_an_attempt_that_fails_for_another_reason_says_so(tmp_path: Path) -> None:
    world = CountingWorld(tmp_path)
    make(world, 0)
    world.come(2)

    def fail(job: Job) -> None:
        raise EngineError("the driver was killed")

    with pytest.raises(EngineError, match="the driver was killed"):
        world.run(1, world.engine(before_stage=fail))
