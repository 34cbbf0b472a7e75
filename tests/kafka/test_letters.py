"""Dead letters that were run again into a topic, out of which nothing is taken: nothing comes twice, and no error
names a command that is always refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.entries import SKEW_MS
from airflow_provider_microbatch.checkpoint.key import LETTERS
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import (
    BatchSetAsideError,
    CheckpointError,
    ForeignBatchError,
    MaintenanceError,
    TransformError,
)
from airflow_provider_microbatch.execution.set_aside import all_aside
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.upkeep.commands.letters_behind import plan_letters_behind
from tests.execution.maintaining import applied, planned, rewind
from tests.execution.test_letters_once import ids, live, replay, restored
from tests.execution.test_set_aside import broken
from tests.execution.two_tables import is_clean
from tests.execution.world import run_identity
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


def test_what_is_planned_and_in_no_table_is_given_up_whatever_letters_the_topic_has(world: TopicWorld) -> None:
    world.land(6)
    world.staged(1)
    world.expire_leases()
    restored(world, lambda: replay(world, 10))
    applied(world, rewind(0, drop_output=False))
    applied(world, partial(plan_letters_behind, allow_skip=True))
    live(world, 2)
    assert world.ids() == [1, 2, 6]


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


@pytest.fixture
def both(tmp_path: Path) -> TopicWorld:
    """Files and a topic; the first batch has 1 and 2."""
    world = TopicWorld(tmp_path, on_replay="append")
    world.options["sink"] = beside_a_table(world, first="files")
    world.options["dead_letters"] = FileSink(str(tmp_path / "letters"), format="json")
    world.options["expect"] = {name: {"version = 1": "dead_letter"} for name in ("files", "topic")}
    world.land(1, 2)
    return world


def test_what_stays_in_the_topic_stays_in_the_table_beside_it(both: TopicWorld) -> None:
    world = both
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


class TestLettersThatTheLogDoesNotTellOf:
    """A batch got its dead letters after the backup, and they were run again."""

    def test_of_one_that_was_planned(self, both: TopicWorld) -> None:
        live(both, 0)
        both.land(3, 4)
        assert both.execution.plan(run_identity(1)) is not None
        self._goes_on(both, lambda: live(both, 1, 4), counted="live/1")
        live(both, 1, 4)
        replay(both, 11)
        assert ids(both) == both.ids() == [1, 2, 3, 4]

    @pytest.mark.parametrize("before", ["set aside", "committed without any"])
    def test_of_one_that_was_cleared(self, both: TopicWorld, before: str) -> None:
        if before == "set aside":
            self._set_aside(both, 0)
        else:
            live(both, 0)
        self._goes_on(both, lambda: live(both, 0, 2, clear_number=1), counted="live/0")
        there = both.ids()
        with pytest.raises(CheckpointError, match="live/0 is not replayed"):
            live(both, 0, clear_number=2)
        assert (ids(both), both.ids()) == ([1, 2], there)

    def test_what_had_none_is_cleared_as_ever(self, both: TopicWorld) -> None:
        live(both, 0, 2)
        both.land(3)
        live(both, 1)
        both.land(4)
        self._set_aside(both, 2)
        self._goes_on(both, lambda: None, counted="live/0")
        live(both, 1, clear_number=1)
        live(both, 2, clear_number=1)
        assert ids(both) == [1, 2, 3, 4]
        assert all_aside(both.checkpoint, "live") == []

    @staticmethod
    def _set_aside(world: TopicWorld, number: int) -> None:
        world.options |= {"on_failure": "set_aside", "set_aside_after": 1}
        with pytest.raises(BatchSetAsideError):
            world.run(number, broken())

    @staticmethod
    def _goes_on(world: TopicWorld, happens: Callable[[], object], *, counted: str) -> None:
        """After the backup; and what is restored counts over the letters that were run again."""
        restored(world, lambda: (happens(), replay(world, 10)))
        (note,) = applied(world, partial(plan_letters_behind, allow_skip=True)).notes
        assert note.startswith(f"dead letters of batch {counted} count as run again")
