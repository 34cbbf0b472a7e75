"""Dead letters that were run again into a topic, out of which nothing is taken: nothing comes twice, and no error
names a command that is always refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.entries import SKEW_MS
from airflow_provider_microbatch.checkpoint.key import LETTERS
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import CheckpointError, ForeignBatchError, MaintenanceError, TransformError
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.upkeep.commands.letters_behind import plan_letters_behind
from tests.execution.maintaining import applied, planned, rewind
from tests.execution.test_letters_once import ids, live, replay, restored
from tests.execution.two_tables import is_clean
from tests.kafka.pipeline import TopicWorld, beside_a_table
from tests.kafka.test_behind_a_topic import world_of

pytestmark = pytest.mark.slow

WAY = r"start-behind \S+ --lane dead-letters --allow-skip"


@pytest.fixture
def world(tmp_path: Path) -> TopicWorld:
    """One batch, of which 2 is a dead letter."""
    world = world_of(tmp_path, on_replay="append")
    live(world, 0, 2)
    return world


@pytest.fixture
def back(world: TopicWorld) -> TopicWorld:
    """It is run again, and the checkpoint, which was restored since, does not know of it."""
    restored(world, lambda: replay(world, 10))
    world.land(6)
    with pytest.raises(ForeignBatchError, match=WAY) as refused:
        live(world, 1)
    assert "--drop-output" not in str(refused.value)
    world.expire_leases()
    with pytest.raises(MaintenanceError, match=rf"they stay.*{WAY}"):
        planned(world, rewind(-1, lane=LETTERS))
    return world


@pytest.mark.parametrize("on_replay", ["append", "fail"])
def test_a_batch_whose_letters_they_are_is_not_replayed_and_stays(world: TopicWorld, on_replay: str) -> None:
    replay(world, 10)
    world.name_sink(on_replay=on_replay)
    with pytest.raises(CheckpointError, match=r"Nobody can take these out of kafka://.*mark the task as") as refused:
        live(world, 0, 2, clear_number=1)
    assert "`microbatch" not in str(refused.value)
    assert world.ids() == [1, 2]


def test_what_is_planned_and_in_no_table_is_given_up_whatever_letters_the_topic_has(back: TopicWorld) -> None:
    applied(back, partial(plan_letters_behind, allow_skip=True))
    back.staged(1)
    back.expire_leases()
    applied(back, rewind(0, drop_output=False))
    live(back, 2)
    assert back.ids() == [1, 2, 6]


def test_what_is_published_is_not_rewound_and_no_way_is_named_that_there_is_not(back: TopicWorld) -> None:
    with pytest.raises(MaintenanceError, match=r"dead-letters/0 .*Nobody can take these out of kafka://") as refused:
        applied(back, rewind(-1))
    assert "`microbatch" not in str(refused.value)


def test_their_lane_goes_on_behind_them_and_nothing_comes_twice(back: TopicWorld) -> None:
    for goes in (partial(live, back, 0, 2, clear_number=1), partial(replay, back, 11)):
        with pytest.raises(ForeignBatchError, match=WAY) as refused:
            goes()
        assert "--drop-output" not in str(refused.value)
    with pytest.raises(MaintenanceError, match=r"dead letters of batch live/0 may be in .*kafka://.* --allow-skip"):
        planned(back, partial(plan_letters_behind, allow_skip=False))
    (note,) = applied(back, partial(plan_letters_behind, allow_skip=True)).notes
    assert "dead letters of batch live/0 count as run again" in note
    replay(back, 12)
    with pytest.raises(CheckpointError, match=r"live/0 is not replayed.* count as run again since .*dead-letters/0"):
        live(back, 0, 2, clear_number=2)
    assert back.ids() == [1, 2]

    back.land(7)
    live(back, 2, 7)
    replay(back, 13)
    assert back.ids() == [1, 2, 6, 7]
    assert back.checkpoint.lane(LETTERS).commit_log.latest_id() == 1
    assert verify_all(back.checkpoint) == []
    assert is_clean(back)
    assert planned(back, partial(plan_letters_behind, allow_skip=True)).steps == ()


def test_while_letters_wait_behind_numbers_that_were_counted_over_a_batch_is_cleared(back: TopicWorld) -> None:
    applied(back, partial(plan_letters_behind, allow_skip=True))
    live(back, 1)
    back.land(7)
    live(back, 2, 7)
    with pytest.raises(TransformError):
        replay(back, 13, transform=lambda sources: 1 / 0)
    back.expire_leases()
    assert is_clean(back)
    live(back, 1, clear_number=1)


def test_what_stays_in_the_topic_stays_in_the_table_beside_it(tmp_path: Path) -> None:
    world = TopicWorld(tmp_path, on_replay="append")
    world.options["sink"] = beside_a_table(world, first="files")
    world.options["dead_letters"] = FileSink(str(tmp_path / "letters"), format="json")
    world.options["expect"] = {name: {"version = 1": "dead_letter"} for name in ("files", "topic")}
    world.land(1, 2)
    live(world, 0, 2)
    restored(world, lambda: replay(world, 10))
    world.land(6)
    with pytest.raises(ForeignBatchError, match=WAY) as refused:
        live(world, 1)
    assert "--drop-output" not in str(refused.value)
    world.expire_leases()
    with pytest.raises(MaintenanceError, match=rf"they stay.*{WAY}"):
        planned(world, rewind(-1, lane=LETTERS))
    applied(world, partial(plan_letters_behind, allow_skip=True))
    live(world, 1)
    replay(world, 11)
    assert ids(world) == world.ids() == [1, 2, 6]


def test_letters_of_what_was_planned_since_are_run_again(world: TopicWorld) -> None:
    """Where the lane is known, no plan of another lane is refused for what a table has of it."""
    replay(world, 10)
    world.land(5)
    live(world, 1, 5)
    restored(world, lambda: replay(world, 11))
    world.clock += 2 * SKEW_MS
    world.land(6, 7)
    live(world, 2, 7)
    (note,) = applied(world, partial(plan_letters_behind, allow_skip=True)).notes
    assert note.startswith("dead letters of batch live/1 count as run again")
    replay(world, 12)
    assert world.ids() == [1, 2, 5, 6, 7]


def test_where_letters_were_counted_over_only_their_batches_are_not_rewound(back: TopicWorld) -> None:
    applied(back, partial(plan_letters_behind, allow_skip=True))
    back.options["sink"] = FileSink(str(back.lake), format="json")
    live(back, 1)
    applied(back, rewind(0))
    live(back, 2)
    assert ids(back) == [6]
    with pytest.raises(MaintenanceError, match=r"dead letters of what would be rewound were run again"):
        planned(back, rewind(-1))
