"""A RESTORE to before a ``rewind``, where a smaller batch has the number of rows that came back, and these lie in a
file that tells of no attempt: whatever others commit then, nothing comes on top."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake

from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.maintaining import expire_all
from tests.execution.test_restore_over_a_rewind import Counted, an_hour_ago, ids, is_refused, lake, rewound, undone
from tests.execution.test_taken_away import compacted
from tests.execution.two_tables import is_clean
from tests.execution.typed_commands import advised, said
from tests.support.inline_engine import InlineEngine, Rows

pytestmark = pytest.mark.slow  # tables, services or worlds that live long


@pytest.fixture
def world(tmp_path: Path) -> Counted:
    return Counted(tmp_path)


def a_smaller_one_in(world: Counted, *, joined: bool) -> None:
    """Where its number is, the rows of a larger one are again."""
    world.batch(2)
    world.batch(6)
    if joined:
        lake(world).optimize.compact()
    world.reads(2)
    undone(world, 0, lambda: world.batch(6))


def others_append(world: Counted) -> None:
    """Rows of no lane."""
    nobody = lake(world).to_pyarrow_table().filter(pc.field("id") == 1)
    for name in ("lane", "batch_id"):
        at = nobody.schema.get_field_index(name)
        nobody = nobody.set_column(at, nobody.schema.field(at), pa.nulls(1, nobody.schema.field(at).type))
    write_deltalake(str(world.lake), nobody, mode="append")


def a_file_written_anew(world: Counted) -> list[int]:
    a_smaller_one_in(world, joined=False)
    lake(world).delete("id = 3")
    return [1, 2, 3, 4, 5, 6, 7]


def an_append_beside_a_joined_file(world: Counted) -> list[int]:
    a_smaller_one_in(world, joined=True)
    others_append(world)
    return [1, 1, 2, 3, 4, 5, 6, 7]


def an_update_in_a_joined_file(world: Counted) -> list[int]:
    a_smaller_one_in(world, joined=True)
    lake(world).update(predicate="id = 3", updates={"id": "30"})
    return [1, 2, 3, 4, 5, 6, 7]


def to_a_moment_at_which_others_had_written_its_file_anew(world: Counted) -> list[int]:
    world.batch(1)
    world.batch(3, InlineEngine(transform=without_three))
    lake(world).update(predicate="id = 2", updates={"id": "id"})
    moment = an_hour_ago(world)
    rewound(world, 0)
    world.batch(3)
    lake(world).restore(moment)
    assert ids(world) == [1, 2]
    return [1, 2, 3, 4, 5, 6, 7]


def without_three(sources: Mapping[str, Rows]) -> Rows:
    """A transform that is mended before the batch is made again."""
    return [row for row in sources["orders"] if row["id"] != 3]


STORIES = [
    a_file_written_anew,
    an_append_beside_a_joined_file,
    an_update_in_a_joined_file,
    to_a_moment_at_which_others_had_written_its_file_anew,
]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_what_others_commit_then_hides_no_row_that_came_back(
    world: Counted, story: Callable[[Counted], list[int]]
) -> None:
    after = story(world)
    (world.root / "head").write_text("7")
    told = is_refused(world, lambda: world.run(50))
    assert told in {one.message for one in check_table(world.checkpoint, everything=True).findings}
    (words,) = advised(told, world)
    assert said(words)[0] == 0
    world.rests()
    assert ids(world) == after
    assert is_clean(world)


@pytest.mark.parametrize("how", ["deleted", "given to nobody"])
def test_rows_that_somebody_has_taken_out_of_a_shared_file_stop_nobody(world: Counted, how: str) -> None:
    """By its statistics the file may have rows of that number still."""
    for head in (2, 4, 6, 7):
        world.batch(head)
    lake(world).optimize.compact()
    world.reads(1)
    undone(world, 1, lambda: world.batch(7))
    is_refused(world, lambda: world.run(50))
    ours = "lane = 'live' AND batch_id = 2"
    if how == "deleted":
        lake(world).delete(ours)
    else:
        lake(world).update(predicate=ours, updates={"lane": "cast(null as string)", "batch_id": "cast(null as bigint)"})
    assert is_refused(world, lambda: world.run(50)).count("of batch live/3:") == 1
    lake(world).delete("lane = 'live' AND batch_id = 3")
    world.rests()
    there = [] if how == "deleted" else [5, 6]
    assert ids(world) == [1, 2, 3, 4, *there, 6, 7]


def test_a_restore_to_a_moment_that_undoes_what_others_did_stops_nobody(world: Counted) -> None:
    """It leaves the very files of a version since the batch was made anew."""
    world.batch(2)
    world.batch(4)
    rewound(world, 0)
    world.batch(4)
    lake(world).optimize.compact()
    moment = an_hour_ago(world)
    lake(world).delete("id = 1")
    lake(world).restore(moment)
    world.batch(5)
    assert ids(world) == [1, 2, 3, 4, 5]
    assert is_clean(world)


def cut_below(world: Counted, version: int) -> None:
    """The log is cleaned up to its newest checkpoint. Versions above this one and before that are listed, and nobody
    can rebuild them."""
    for entry in sorted((world.lake / "_delta_log").glob("*.json")):
        if int(entry.stem) < version:
            entry.unlink()


def in_a_joined_file(world: Counted) -> tuple[dt.datetime, int]:
    """Two batches were made anew since a moment at which one file had both; the version that has them anew."""
    for head in (2, 4, 6):
        world.batch(head)
    compacted(world)
    moment = an_hour_ago(world)
    rewound(world, 0)
    world.batch(6)
    world.batch(7)
    return moment, lake(world).version()


def test_rows_that_came_back_lead_on_where_the_log_cannot_rebuild_a_version_of_before(world: Counted) -> None:
    moment, newest = in_a_joined_file(world)
    lake(world).create_checkpoint()
    lake(world).restore(moment)
    cut_below(world, newest - 1)
    (world.root / "head").write_text("9")
    (words,) = advised(is_refused(world, lambda: world.run(50)), world)
    expire_all(world.root)
    assert said(words)[0] == 0
    world.rests()
    assert ids(world) == list(range(1, 10))
    assert is_clean(world)


def test_a_restore_that_was_undone_stops_nobody_whatever_the_log_can_rebuild(world: Counted) -> None:
    moment, _ = in_a_joined_file(world)
    compacted(world)
    newest = lake(world).version()
    lake(world).create_checkpoint()
    lake(world).restore(moment)
    lake(world).restore(newest)
    cut_below(world, newest - 2)
    world.batch(9)
    assert ids(world) == list(range(1, 10))


def test_a_batch_that_was_made_again_since_counts_as_itself_once_its_file_is_joined(world: Counted) -> None:
    """The table is at an attempt of the plan that is in, as behind a RESTORE to before a clear; and another RESTORE has
    put it, before that, to before the rewind that took an older batch of that number out."""
    world.batch(2)
    before = lake(world).version()
    world.batch(4)
    rewound(world, 0)
    lake(world).restore(before)
    world.batch(4)
    first = lake(world).version()
    world.run(world.runs, clear_number=1)
    lake(world).restore(first)
    lake(world).optimize.compact()
    world.batch(6)
    assert ids(world) == [1, 2, 3, 4, 5, 6]
