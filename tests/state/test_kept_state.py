"""How long files of state are kept."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
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
