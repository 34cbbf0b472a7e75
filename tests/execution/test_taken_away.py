"""A Delta table that somebody has put back (RESTORE, an overwrite) to before batches that no log knows any more: it
counts them as in, runs go on, and only ``check --table`` tells what it lacks."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from copy import copy
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import Field, write_deltalake

from airflow_provider_microbatch.exceptions import ForeignBatchError, SinkError
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.compaction import Compaction
from airflow_provider_microbatch.sinks.delta.log import DeltaLog
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.maintaining import expire_all
from tests.execution.test_restore_over_a_rewind import Counted, ids, lake, rewound
from tests.execution.two_tables import is_clean
from tests.execution.typed_commands import said
from tests.support.inline_engine import InlineEngine

pytestmark = pytest.mark.slow  # tables, services or worlds that live long

NAMED = re.compile(r"(batch.*?) of lane (\S+): .* has no row of them any more, since somebody has put the table back")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Counted:
    """Seven batches of a row each, of which the log knows the last two."""
    root = tmp_path_factory.mktemp("taken") / "world"
    root.mkdir()
    world = Counted(root, min_batches_to_retain=2)
    for head in range(1, 8):
        world.batch(head)
    tidied(world)
    assert world.checkpoint.offset_log.ids() == [5, 6]
    shutil.copytree(world.root, world.root.with_name("kept"), symlinks=True)
    return world


@pytest.fixture
def world(made: Counted) -> Counted:
    """As it was made, at its place."""
    shutil.rmtree(made.root)
    shutil.copytree(made.root.with_name("kept"), made.root, symlinks=True)
    return copy(made)


def tidied(world: Counted) -> None:
    expire_all(world.root)
    world.janitor()


def told(world: Counted) -> list[str]:
    """The batches that are told of, and by which commit they went."""
    findings = check_table(world.checkpoint, everything=True).findings
    found = [NAMED.match(one.message) for one in findings]
    assert all(found[: sum(map(bool, found))]), findings  # a clear comes after
    return [match[1] for match in found if match]


def cleared(world: Counted, *numbers: int) -> None:
    for number in numbers:
        assert world.run(number + 1, clear_number=1) is not None


def overwritten(world: Counted) -> None:
    kept = lake(world).to_pyarrow_table().filter(pa.compute.field("batch_id") < 3)
    write_deltalake(str(world.lake), kept, mode="overwrite")


def restored(world: Counted) -> None:
    lake(world).restore(2)


def compacted(world: Counted) -> None:
    sink = world.pipeline.sink.open(SinkContext())
    wanted = Compaction(checkpoint=world.checkpoint_id, tables=world.checkpoint.tables, left_alone=lambda _: None)
    assert sink.compact(wanted).batches


def optimized(world: Counted) -> None:
    lake(world).optimize.compact()


def nothing(_: Counted) -> None:
    pass


@pytest.mark.parametrize(
    ("happens", "joined"),
    [
        (restored, nothing),
        (restored, compacted),
        (restored, optimized),
        (overwritten, nothing),
        (overwritten, optimized),
    ],
)
def test_what_a_table_has_lost_of_before_the_log_is_named_until_it_is_back(
    world: Counted, happens: Callable[[Counted], None], joined: Callable[[Counted], None]
) -> None:
    happens(world)
    assert ids(world) == [1, 2, 3]
    world.batch(8)
    joined(world)  # in one file with those before and after
    assert told(world) == ["batches 3 to 5"]
    cleared(world, 6)
    assert ids(world) == [1, 2, 3, 7, 8]
    assert told(world) == ["batches 3 to 5"]
    write_deltalake(str(world.lake), by_hand(world, 3, 4), mode="append")
    assert told(world) == ["batch 5"]
    write_deltalake(str(world.lake), by_hand(world, 5), mode="append")
    assert is_clean(world)


def by_hand(world: Counted, *numbers: int) -> pa.Table:
    """Rows of these batches, as somebody has read them again."""
    like = lake(world).to_pyarrow_table()
    rows = [{"lane": "live", "batch_id": number, "id": number + 1} for number in numbers]
    return pa.Table.from_pylist(rows, schema=like.schema)


def typed(world: Counted) -> None:
    """The command that copies the rows back."""
    (found,) = [one for one in check_table(world.checkpoint, everything=True).findings if NAMED.match(one.message)]
    assert re.search(r"version \d+: RESTORE by delta-rs\S* at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", found.message)
    code = re.search(r"from version \d+ to where it is now: (python -c .*?) \(once", found.repair)
    assert code is not None
    subprocess.run([sys.executable, *shlex.split(code[1])[1:]], check=True)


@pytest.mark.parametrize("joined", [nothing, compacted, optimized])
def test_what_went_is_copied_from_the_version_of_before(world: Counted, joined: Callable[[Counted], None]) -> None:
    restored(world)
    world.batch(8)
    joined(world)
    typed(world)
    assert ids(world) == [1, 2, 3, 4, 5, 6, 8]
    assert told(world) == []
    cleared(world, 6)
    assert ids(world) == list(range(1, 9))
    assert is_clean(world)


def test_what_was_made_since_stays_though_no_log_has_it_any_more(world: Counted) -> None:
    """Nor do others lose the rows that they have appended since."""
    restored(world)
    for head in range(8, 14):
        world.batch(head)
    write_deltalake(str(world.lake), pa.table({"id": pa.array([99], pa.int64())}), mode="append", schema_mode="merge")
    tidied(world)
    assert world.checkpoint.offset_log.ids() == [11, 12]
    typed(world)
    assert ids(world) == [*range(1, 14), 99]
    assert is_clean(world)


def test_rows_are_copied_of_these_batches_alone(world: Counted) -> None:
    """Also where the table has got a column since."""
    restored(world)
    world.batch(8)
    write_deltalake(str(world.lake), by_hand(world, 4), mode="append")
    lake(world).alter.add_columns([Field("more", "string")])
    assert told(world) == ["batch 3, batch 5"]
    typed(world)
    assert ids(world) == [1, 2, 3, 4, 5, 6, 8]
    assert told(world) == []


def test_what_was_copied_counts_as_no_rows_of_before_a_rewind(tmp_path: Path) -> None:
    """The RESTORE went to before the batch was made, in either life: it brought none of its rows."""
    world = Counted(tmp_path, min_batches_to_retain=4)
    for head in range(1, 6):
        world.batch(head)
    rewound(world, 3)
    for head in range(5, 12):
        world.batch(head)
    tidied(world)
    lake(world).restore(2)
    world.batch(12)
    typed(world)
    world.batch(13)
    assert ids(world) == [1, 2, 3, 4, 5, 6, 7, 8, 12, 13]


def test_of_two_such_commits_each_tells_what_it_has_taken(world: Counted) -> None:
    restored(world)
    for head in (8, 9, 10):
        world.batch(head)
    lake(world).restore(1)
    assert told(world) == ["batch 2, batch 7", "batches 3 to 6"]


@pytest.mark.parametrize("joined", [nothing, compacted])
def test_what_somebody_has_deleted_is_meant_and_an_empty_batch_had_nothing(
    world: Counted, joined: Callable[[Counted], None]
) -> None:
    world.batch(8, InlineEngine(transform=lambda sources: [row for row in sources["orders"] if row["id"] < 0]))
    world.batch(9)
    joined(world)
    lake(world).delete("batch_id = 3")
    before = lake(world).version()
    lake(world).delete("batch_id = 1")
    lake(world).restore(before)
    for head in (10, 11):
        world.batch(head)
    assert ids(world) == [1, 2, 3, 5, 6, 7, 9, 10, 11]
    assert told(world) == []


def test_so_it_is_over_a_rewind_whose_rows_somebody_has_deleted(tmp_path: Path) -> None:
    """The RESTORE brings back a batch of a plan of before, which has to be deleted, and takes the new one away."""
    world = Counted(tmp_path, min_batches_to_retain=3)
    for head in (1, 2, 3):
        world.batch(head)
    before = lake(world).version()
    rewound(world, 1)
    for head in range(3, 9):
        world.batch(head)
    tidied(world)
    assert world.checkpoint.offset_log.ids() == [5, 6, 7]
    lake(world).restore(before)
    lake(world).delete("lane = 'live' AND batch_id = 2")
    assert told(world) == ["batches 2 to 4"]
    cleared(world, 6, 7, 8)  # runs, one of which was taken out, count one more
    assert told(world) == ["batches 2 to 4"]


def test_so_it_is_of_a_checkpoint_that_begins_behind_a_kept_table(world: Counted) -> None:
    shutil.rmtree(world.root / "checkpoint")
    with pytest.raises(ForeignBatchError):
        world.batch(8)
    expire_all(world.root)
    assert said(["start-behind", world.pipeline.checkpoint, "--allow-reread"])[0] == 0
    restored(world)
    assert told(world) == ["batches 3 to 6"]
    world.batch(8)
    assert told(world) == ["batches 3 to 6"]


def test_what_the_log_of_the_table_does_not_have_any_more_nobody_can_tell(world: Counted) -> None:
    restored(world)
    lake(world).create_checkpoint()
    for entry in sorted((world.lake / "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()
    assert told(world) == []


def test_an_older_restore_before_which_nobody_can_rebuild_the_table_hides_no_other(tmp_path: Path) -> None:
    world = Counted(tmp_path, min_batches_to_retain=2)
    for head in (1, 2, 3):
        world.batch(head)
    lake(world).delete("id = 2")
    lake(world).restore(2)
    for head in range(4, 8):
        world.batch(head)
    lake(world).create_checkpoint()
    compacted(world)
    tidied(world)
    lake(world).restore(5)
    world.batch(8)
    for version in range(3):
        (world.lake / "_delta_log" / f"{version:020}.json").unlink()
    assert told(world) == ["batches 4 to 5"]


def test_that_nobody_can_tell_is_told(world: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise SinkError("the store is out of reach")

    restored(world)
    monkeypatch.setattr(DeltaLog, "at", refused)
    (found,) = (one for one in check_table(world.checkpoint, everything=True).findings if "out of reach" in one.message)
    assert "nobody can tell which batches of before the log" in found.message
