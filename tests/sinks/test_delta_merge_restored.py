"""Somebody has put a Delta table of merged changes, as a whole, back to what it was before its newest changes: nobody
merges on by these, and the way on that is named leads back to the rows."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.delta.merged.newest import FolderNewest, Newest
from tests.sinks.changes import change
from tests.sinks.delta_world import optimize_and_vacuum
from tests.sinks.merged_delta import MergedInDelta, anywhere, in_bucket
from tests.sinks.stages import expect

NEWEST = [(1, "a", 3, 1, "x"), (3, "a", 2, 1, "x")]
"""The rows of all three batches."""


@pytest.fixture
def table(tmp_path: Path, request: pytest.FixtureRequest) -> MergedInDelta:
    place: type[MergedInDelta] = getattr(request, "param", MergedInDelta)
    table = place(tmp_path / place.name)
    table.publish(1, change(ts=1), change(id=2, ts=1))
    table.publish(2, change(ts=3), change(id=3, ts=2))
    table.publish(3, change(id=2, ts=5, deleted=True))
    assert table.rows() == NEWEST
    return table


def restore_by_time(table: DeltaTable) -> None:
    table.restore(datetime.fromtimestamp((table.history()[-1]["timestamp"] + 0.5) / 1000, UTC))


def overwrite(table: DeltaTable) -> None:
    write_deltalake(table, table.to_pyarrow_table().slice(0, 1), mode="overwrite")


PUT_BACK: dict[str, Callable[[DeltaTable], Any]] = {
    "RESTORE": lambda table: table.restore(1),
    "RESTORE, twice": lambda table: (table.restore(1), table.restore(0)),
    "RESTORE to a time": restore_by_time,
    "an overwrite": overwrite,
}


def refused(table: MergedInDelta) -> str:
    """What everybody is told; nothing is changed."""
    before, told = table.rows(), set[str]()
    table.write(BatchKey("live", 4), 1, [change(id=2, ts=4), change(id=4)])
    for tried in (
        table.sink.check,
        table.sink.check_whole,
        lambda: table.sink.publish(expect(BatchKey("live", 4)), 1),
        lambda: table.replace(3, change(id=5)),
        lambda: table.withdraw(3),
    ):
        with pytest.raises(SinkError) as raised:
            tried()
        told.add(str(raised.value))
    assert table.rows() == before
    (text,) = told
    return text


@pytest.mark.parametrize("put_back", PUT_BACK.values(), ids=PUT_BACK)
def test_nobody_merges_into_a_table_that_was_put_back_until_it_has_its_newest_rows(
    table: MergedInDelta, put_back: Callable[[DeltaTable], Any]
) -> None:
    put_back(table.table())
    told = refused(table)
    assert re.search(r"version 3: (RESTORE|WRITE) by delta-rs", told)
    (command,) = re.findall(r"python -c '.+?'(?= )", told)
    subprocess.run([sys.executable, *shlex.split(command)[1:]], check=True)
    assert table.rows() == NEWEST
    table.sink.check_whole()
    table.sink.publish(expect(BatchKey("live", 4)), 1)
    assert table.rows() == [*NEWEST, (4, "a", 1, 1, "x")]
    assert table.withdraw(3)
    assert table.rows() == [NEWEST[0], (2, "a", 4, 1, "x"), *NEWEST[1:], (4, "a", 1, 1, "x")]


@in_bucket
def test_so_it_is_in_a_bucket(table: MergedInDelta) -> None:
    """Whose first version is one without a batch."""
    table.table().restore(2)
    table.table().restore(1)
    told = refused(table)
    assert re.search(r"version 5: RESTORE by delta-rs.*; version 4: RESTORE by delta-rs.*Bring version 3 back", told)
    (command,) = re.findall(r"python -c '.+?\)'(?= )", told)
    subprocess.run([sys.executable, *shlex.split(command)[1:]], check=True)
    assert table.rows() == NEWEST
    table.sink.publish(expect(BatchKey("live", 4)), 1)
    assert table.rows() == [*NEWEST, (4, "a", 1, 1, "x")]


def test_what_others_have_done_before_it_comes_back_too(table: MergedInDelta) -> None:
    table.table().update(predicate="id = 1", updates={"note": "'by hand'"})
    table.table().restore(0)
    command = re.findall(r"python -c '.+?'(?= )", refused(table))[0]
    subprocess.run([sys.executable, *shlex.split(command)[1:]], check=True)
    assert table.rows() == [(1, "a", 3, 1, "by hand"), NEWEST[1]]
    table.sink.check()


def test_a_restore_that_takes_back_what_others_have_done_is_none_of_the_newest_changes(table: MergedInDelta) -> None:
    table.table().delete()
    table.table().restore(2)
    table.sink.check()
    table.publish(4, change(id=4))
    assert table.rows() == [*NEWEST, (4, "a", 1, 1, "x")]


def test_what_others_may_do_they_may_do_on(table: MergedInDelta) -> None:
    kinds = {"id": pa.int64(), "shop": pa.string(), "ts": pa.int64(), "seq": pa.int32(), "note": pa.string()}
    row = {"id": 9, "shop": "a", "ts": 1, "seq": 1, "note": "theirs"}
    theirs = pa.Table.from_pylist([row], schema=pa.schema(kinds))
    write_deltalake(table.table(), theirs, mode="append", schema_mode="merge")
    optimize_and_vacuum(table.root)
    write_deltalake(table.table(), theirs, mode="overwrite", schema_mode="merge", predicate="id = 9")
    table.table().delete("id = 3")
    table.table().create_checkpoint()
    table.publish(4, change(id=4))
    assert table.rows() == [NEWEST[0], (4, "a", 1, 1, "x"), (9, "a", 1, 1, "theirs")]


@anywhere
def test_a_log_that_was_put_back_alone_is_refused_before_anything_runs(table: MergedInDelta) -> None:
    table.publish(5, change(id=4))
    table.remove(f"_delta_log/{table.table().version():020}.json")
    assert "Bring the folder _microbatch of the table back" in refused(table)


def test_of_records_that_say_the_same_the_one_of_the_try_that_was_not_outrun_counts(tmp_path: Path) -> None:
    records, same = FolderNewest(tmp_path), Newest(keys=["id"], sequence_by=["ts"], files={})
    (number,) = {records.put(same, version=version) for version in (9, 12, 10)}
    assert records.version(number) == 12
