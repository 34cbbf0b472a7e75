"""A Delta table that somebody has put back by RESTORE to before a ``rewind``: what that took out has rows again, and by
the log's application transactions it is out. Nothing comes on top of that, and one rewind leads on, whatever the
RESTORE has undone, and whatever was made in between."""

from __future__ import annotations

import datetime as dt
import os
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from acme_microbatch.counter import CounterSource
from deltalake import DeltaTable

from airflow_provider_microbatch.exceptions import BatchSetAsideError, MicroBatchError, SinkError
from airflow_provider_microbatch.execution.intervals import lane_of
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.compaction import Compaction
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.delta.table import OpenDeltaTable
from airflow_provider_microbatch.upkeep.commands.set_offset import plan_set_offset
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.maintaining import CHANGES, applied, expire_all, killed_at, moments, rewind
from tests.execution.test_dead_letters import Checked, typed
from tests.execution.test_letters_once import live, replay
from tests.execution.two_tables import is_clean
from tests.execution.typed_commands import advised, said
from tests.execution.world import World
from tests.support.inline_engine import InlineEngine

pytestmark = pytest.mark.slow  # tables, services or worlds that live long


def lake(world: World) -> DeltaTable:
    return DeltaTable(str(world.lake))


def ids(world: World) -> list[int]:
    return sorted(lake(world).to_pyarrow_table().column("id").to_pylist())


def rewound(world: World, to: int, *, lane: str = "live") -> None:
    expire_all(world.root)
    words = ["rewind", world.pipeline.checkpoint, "--to", str(to), "--drop-output", "--lane", lane]
    status, text = said(words)
    assert status == 0, text


def is_refused(world: World, run: Callable[[], object]) -> str:
    """Nothing is changed in the table; and the error."""
    before, version = ids(world), lake(world).version()
    with pytest.raises(SinkError, match="has rows again that a rewind has taken out") as refused:
        run()
    assert (ids(world), lake(world).version()) == (before, version)
    return str(refused.value)


class Counted(World):
    """A source of numbers, of which ``head`` are there."""

    def __init__(self, root: Path, **pipeline: Any) -> None:
        super().__init__(root, sink=DeltaSink(str(root / "lake")), **pipeline)
        self.reads(None)
        self.runs = 0

    def reads(self, max_rows: int | None) -> None:
        """At most so many in a batch."""
        self.sources = {"orders": CounterSource(str(self.root / "head"), max_rows=max_rows)}

    def batch(self, head: int, engine: InlineEngine | None = None) -> None:
        """One of all that are there now."""
        (self.root / "head").write_text(str(head))
        self.runs += 1
        assert self.run(self.runs, engine) is not None

    def fails(self, head: int) -> None:
        """One that is set aside."""
        with pytest.raises(BatchSetAsideError):
            self.batch(head, InlineEngine(transform=lambda _: 1 / 0))  # type: ignore[arg-type, return-value]

    def by_hand(self, to: int) -> None:
        (self.root / "head").write_text(str(max(to, int((self.root / "head").read_text()))))
        skip = partial(plan_set_offset, lane="live", source="orders", offset=f'{{"n": {to}}}')
        expire_all(self.root)
        applied(self, partial(skip, allow_skip=True, allow_reread=False))

    def rests(self) -> None:
        """All runs until there is nothing more."""
        while True:
            self.runs += 1
            if self.run(self.runs) is None:
                return


def three_batches(world: Counted) -> None:
    for head in (2, 4, 6):
        world.batch(head)


def undone(world: World, to: int, between: Callable[[], None] = lambda: None) -> None:
    """The user undoes a rewind, and what came after it, in the table alone."""
    before, rows = lake(world).version(), ids(world)
    rewound(world, to)
    between()
    lake(world).restore(before)
    assert ids(world) == rows


def the_newest(world: Counted) -> None:
    three_batches(world)
    undone(world, 1)


def many(world: Counted) -> None:
    three_batches(world)
    undone(world, 0)


def all_of_them(world: Counted) -> None:
    three_batches(world)
    undone(world, -1)


def in_a_file_of_others(world: Counted) -> None:
    three_batches(world)
    lake(world).optimize.compact()
    undone(world, 1)


def a_position_by_hand_in_its_place(world: Counted) -> None:
    world.batch(2)
    world.by_hand(3)
    world.batch(5)
    undone(world, 0, lambda: world.by_hand(5))


def a_position_by_hand_over_it(world: Counted) -> None:
    world.batch(2)
    world.batch(6)
    undone(world, 0, lambda: world.by_hand(3))


def a_batch_set_aside_over_it(world: Counted) -> None:
    world.batch(2)
    world.fails(4)
    world.batch(6)
    undone(world, 0, lambda: world.fails(6))


def a_smaller_batch_set_aside(world: Counted) -> None:
    world.batch(2)
    world.batch(6)
    world.reads(2)
    undone(world, 0, lambda: world.fails(6))


def smaller_batches_in(world: Counted) -> None:
    world.batch(2)
    world.batch(6)
    world.reads(2)
    undone(world, 0, lambda: world.batch(6))


def smaller_batches_in_beside_a_joined_file(world: Counted) -> None:
    world.batch(2)
    world.batch(6)
    lake(world).optimize.compact()
    world.reads(2)
    undone(world, 0, lambda: world.batch(6))


def larger_batches_in(world: Counted) -> None:
    three_batches(world)
    undone(world, 0, lambda: world.batch(6))


def an_empty_batch(world: Counted) -> None:
    world.batch(2)
    world.batch(3, InlineEngine(transform=lambda _: []))
    world.batch(5)
    undone(world, 0)


def two_rewinds(world: Counted) -> None:
    """The second goes further back, and what the first took out had been read in other batches since."""
    for head in (2, 4, 6, 8):
        world.batch(head)
    before = lake(world).version()
    rewound(world, 2)
    world.batch(9)
    rewound(world, 0)
    world.reads(1)
    world.batch(9)
    lake(world).restore(before)


def two_rewinds_the_second_nearer(world: Counted) -> None:
    three_batches(world)
    before = lake(world).version()
    rewound(world, 0)
    world.reads(1)
    for _ in range(3):
        world.batch(6)
    rewound(world, 2)
    lake(world).restore(before)


def a_rewind_over_what_has_no_output(world: Counted) -> None:
    """It takes nothing out of the table, and what the one before took out is read again by what follows on it."""
    world.batch(2)
    world.fails(3)
    world.batch(6)
    before = lake(world).version()
    rewound(world, 1)
    rewound(world, 0)
    world.batch(6)
    world.batch(7)
    lake(world).restore(before)


def to_a_moment_in_a_joined_file(world: Counted) -> None:
    three_batches(world)
    sink = world.pipeline.sink.open(SinkContext())
    wanted = Compaction(checkpoint=world.checkpoint_id, tables=world.checkpoint.tables, left_alone=lambda _: None)
    assert sink.compact(wanted).batches
    moment = an_hour_ago(world)
    rewound(world, 0)
    world.batch(6)
    lake(world).restore(moment)
    assert ids(world) == [1, 2, 3, 4, 5, 6]


def a_cut_log(world: Counted) -> None:
    """Somebody has purged old rows on purpose, and nothing of that comes up."""
    for head in range(1, 6):
        world.batch(head)
    moment = an_hour_ago(world)
    lake(world).create_checkpoint()
    for entry in sorted((world.lake / "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()
    rewound(world, 3)
    lake(world).restore(moment)
    assert ids(world) == [1, 2, 3, 4, 5]


def an_hour_ago(world: World) -> dt.datetime:
    """A moment at which the table was as it is now."""
    ago = time.time() - 3600
    for entry in (world.lake / "_delta_log").glob("*.json"):
        os.utime(entry, (ago, ago))
    return dt.datetime.fromtimestamp(ago + 60, dt.UTC)


STORIES = [
    the_newest,
    many,
    all_of_them,
    in_a_file_of_others,
    a_position_by_hand_in_its_place,
    a_position_by_hand_over_it,
    a_batch_set_aside_over_it,
    a_smaller_batch_set_aside,
    smaller_batches_in,
    smaller_batches_in_beside_a_joined_file,
    larger_batches_in,
    an_empty_batch,
    two_rewinds,
    two_rewinds_the_second_nearer,
    a_rewind_over_what_has_no_output,
    to_a_moment_in_a_joined_file,
    a_cut_log,
]


@pytest.fixture
def world(tmp_path: Path) -> Counted:
    return Counted(tmp_path, on_failure="set_aside", set_aside_after=1)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_nothing_comes_on_top_and_one_rewind_leads_on(world: Counted, story: Callable[[Counted], None]) -> None:
    story(world)
    head = int((world.root / "head").read_text()) + 2
    (world.root / "head").write_text(str(head))
    told = is_refused(world, lambda: world.run(50))
    for everything in (False, True):
        assert told in {one.message for one in check_table(world.checkpoint, everything=everything).findings}
    is_refused(world, lambda: world.run(1, clear_number=1))
    (words,) = advised(told, world)
    assert said(words)[0] == 0
    world.rests()
    assert ids(world) == list(range(1, head + 1))
    assert is_clean(world)


def test_a_rewind_that_does_not_go_far_enough_is_refused(world: Counted) -> None:
    two_rewinds(world)
    expire_all(world.root)
    status, text = said(["rewind", world.pipeline.checkpoint, "--to", "1", "--drop-output"])
    assert status == 2
    assert "--to 0 --drop-output` takes them out" in text
    rewound(world, -1)
    world.rests()
    assert ids(world) == list(range(1, 10))


def test_without_drop_output_it_is_refused(world: Counted) -> None:
    the_newest(world)
    status, text = said(["rewind", world.pipeline.checkpoint, "--to", "1"])
    assert status == 2
    assert "would be in it twice: batch 2." in text


def test_where_retention_has_removed_what_to_go_back_to_somebody_takes_them_out_by_hand(world: Counted) -> None:
    def on_behind_them() -> None:
        world.by_hand(6)
        world.batch(7)

    three_batches(world)
    undone(world, 1, on_behind_them)
    for number in (0, 1):
        for log in ("offsets", "commits"):
            (world.root / "checkpoint" / log / str(number)).unlink()
    told = is_refused(world, lambda: world.run(50))
    assert told.index("UPDATE …") < told.index("DELETE … WHERE lane = 'live' AND batch_id IN (2)")
    assert "those before batch 2 only as long as" in told
    lake(world).delete("lane = 'live' AND batch_id IN (2)")
    messages = [one.message for one in check_table(world.checkpoint, everything=True).findings]
    assert any("batch live/3 in" in one and "none of its 1 rows" in one for one in messages), messages
    world.run(world.runs, clear_number=1)
    (world.root / "head").write_text("8")
    world.rests()
    assert ids(world) == [1, 2, 3, 4, 7, 8]


def test_rows_whose_lane_and_number_are_set_to_null_belong_to_nobody(world: Counted) -> None:
    """Who cannot read them again keeps them so."""
    the_newest(world)
    is_refused(world, lambda: world.run(50))
    lake(world).update(
        predicate="lane = 'live' AND batch_id = 2",
        updates={"lane": "cast(null as string)", "batch_id": "cast(null as bigint)"},
    )
    world.rests()
    assert ids(world) == [1, 2, 3, 4, 5, 5, 6, 6]
    assert is_clean(world)


@pytest.mark.timeout(300)
def test_killed_at_any_change_of_that_rewind_it_is_finished(world: Counted, monkeypatch: Any) -> None:
    monkeypatch.setitem(CHANGES, OpenDeltaTable, ("withdraw",))
    larger_batches_in(world)
    for moment in moments(world.root):
        expire_all(world.root)
        was_killed = killed_at(moment, lambda: applied(world, rewind(0)), signs=False)
        expire_all(world.root)
        applied(world, rewind(0))
        again = Counted(world.root)
        again.clock, again.runs = world.clock, 100
        again.rests()
        assert ids(again) == list(range(1, 7))
        if not was_killed:
            return


def test_an_attempt_of_before_the_restore_is_refused_and_its_next_try_names_the_way(world: Counted) -> None:
    three_batches(world)
    before = lake(world).version()
    rewound(world, 0)
    world.staged(50)
    lake(world).restore(before)
    world.expire_leases()
    told = is_refused(world, lambda: world.run(50, try_number=2))
    expire_all(world.root)
    typed(world, told)
    world.rests()
    assert ids(world) == list(range(1, 7))
    assert is_clean(world)


def test_pipelines_of_which_no_rewind_is_on_record_ask_no_table(world: Counted, monkeypatch: Any) -> None:
    world.batch(2)
    monkeypatch.setattr("airflow_provider_microbatch.sinks.delta.table.OpenDeltaTable.came_back", None)
    world.batch(4)
    world.run(2, clear_number=1)


def letters_rewound(root: Path) -> tuple[Checked, int]:
    """A world whose letters were run again, and that was taken back; and the table's version of before that."""
    world = Checked(root, sink=DeltaSink(str(root / "lake")))
    world.land(1, 2, 3)
    live(world, 0, 2)
    replay(world, 10)
    before = lake(world).version()
    rewound(world, -1, lane="dead-letters")
    return world, before


def of_letters(root: Path) -> Checked:
    """Such a world, whose table has them again."""
    world, before = letters_rewound(root)
    lake(world).restore(before)
    return world


@pytest.mark.parametrize("what", ["the letters are run again", "their batch is replayed", "another batch is made"])
def test_letters_that_are_there_again_are_taken_out_first(tmp_path: Path, what: str) -> None:
    world = of_letters(tmp_path)
    world.land(4)
    run: dict[str, Callable[[], object]] = {
        "the letters are run again": lambda: replay(world, 11),
        "their batch is replayed": lambda: live(world, 0, clear_number=1),
        "another batch is made": lambda: live(world, 1),
    }
    told = is_refused(world, run[what])
    assert "--lane dead-letters`" in told
    typed(world, told)
    run[what]()
    live(world, 2)
    if what == "another batch is made":
        replay(world, 11)
    assert ids(world) == [1, 2, 3, 4]
    assert is_clean(world)


def test_rows_that_a_clear_has_made_of_letters_come_back_by_another_clear(tmp_path: Path) -> None:
    """They went with the RESTORE that brought the letters' back."""
    world, before = letters_rewound(tmp_path)
    live(world, 0, clear_number=1)
    assert ids(world) == [1, 2, 3]
    lake(world).restore(before)
    typed(world, is_refused(world, lambda: live(world, 0, clear_number=2)))
    assert ids(world) == [1, 3]
    (finding,) = check_table(world.checkpoint, everything=True).findings
    assert "put back by" in finding.message
    live(world, 0, clear_number=2)
    assert ids(world) == [1, 2, 3]
    assert is_clean(world)


def test_an_interval_that_is_there_again_is_taken_out_first(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, sink=DeltaSink(str(tmp_path / "lake")))
    for number in range(2):
        world.land_at(number + 0.5, number)
        world.backfill(hour(number), number)
    assert ids(world) == [0, 1]
    before = lake(world).version()
    rewound(world, -1, lane=lane_of(hour(1)))
    lake(world).restore(before)
    told = is_refused(world, lambda: world.backfill(hour(1), 5))
    assert re.search(r"rewind .* --to -1 --drop-output --lane interval-", told)
    typed(world, told)
    world.backfill(hour(1), 5)
    assert ids(world) == [0, 1]
    assert is_clean(world)


def test_both_of_two_lanes_lead_on(tmp_path: Path) -> None:
    """The live lane was rewound over letters that were run again, of which both are there again."""
    world, before = letters_rewound(tmp_path)
    rewound(world, -1)
    lake(world).restore(before)
    for _ in range(2):
        try:
            live(world, 5)
        except MicroBatchError as error:
            typed(world, str(error))
    live(world, 5)
    assert ids(world) == [1, 2, 3]
    assert is_clean(world)
