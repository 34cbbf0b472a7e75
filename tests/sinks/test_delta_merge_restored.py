"""Somebody has put a Delta table of merged changes, as a whole, back to what it was before its newest changes: nobody
merges on by these, and the way on that is named leads back to the rows."""

from __future__ import annotations

import json
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
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.merged.newest import FolderNewest, Newest
from tests.execution.typed_commands import said
from tests.execution.world import World
from tests.sinks.changes import change
from tests.sinks.merged_delta import MergedInDelta
from tests.sinks.merged_lakes import IN_BUCKET, in_bucket
from tests.sinks.stages import expect
from tests.support.inline_engine import InlineEngine

NEWEST = [(1, "a", 3, 1, "x"), (3, "a", 2, 1, "x")]
"""The rows of all three batches."""


@pytest.fixture
def lake() -> type[MergedInDelta]:
    return MergedInDelta


@pytest.fixture
def table(lake: type[MergedInDelta], tmp_path: Path) -> MergedInDelta:
    table = lake(tmp_path / lake.name)
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


def copy_newest(table: MergedInDelta, name: str) -> None:
    folder, version = "_microbatch/newest", table.table().version()
    (own,) = (
        file for file in table.stored(folder) if file.startswith(f"{folder}/{version}.") and file.endswith(".json")
    )
    table.put(f"{folder}/{name}.{own.partition('.')[2]}", table.get(own))


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
    table.tidy()
    write_deltalake(table.table(), theirs, mode="overwrite", schema_mode="merge", predicate="id = 9")
    table.table().delete("id = 3")
    table.table().create_checkpoint()
    table.publish(4, change(id=4))
    assert table.rows() == [NEWEST[0], (4, "a", 1, 1, "x"), (9, "a", 1, 1, "theirs")]


@pytest.mark.parametrize("lake", [pytest.param(MergedInDelta, id="folder"), IN_BUCKET])
def test_a_log_that_was_put_back_alone_is_refused_before_anything_runs(table: MergedInDelta) -> None:
    table.publish(5, change(id=4))
    table.remove(f"_delta_log/{table.table().version():020}.json")
    assert "Bring the folder _microbatch of the table back" in refused(table)


def test_of_records_that_say_the_same_the_one_of_the_try_that_was_not_outrun_counts(tmp_path: Path) -> None:
    records, same = FolderNewest(tmp_path), Newest(keys=["id"], sequence_by=["ts"], files={})
    (number,) = {records.put(same, version=version) for version in (9, 12, 10)}
    assert records.version(number, up_to=99) == 12


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "parameters", [{"version": "4"}, {"version": "7"}, {"version": "9" * 30}, ["version"], "x", None]
)
def test_a_restore_that_leads_nowhere_holds_nobody_up(table: MergedInDelta, parameters: object) -> None:
    """Whoever can write the table's folder can write such a commit."""
    at = table.table().version() + 1
    info = {"timestamp": 1, "operation": "RESTORE", "operationParameters": parameters}
    (table.root / "_delta_log" / f"{at:020}.json").write_text(json.dumps({"commitInfo": info}) + "\n")
    with pytest.raises(SinkError):
        table.sink.check()


@pytest.mark.parametrize("name", ["x", "", "99999", "٣", "²", "1_0", "-1"])
def test_a_copy_of_the_newest_record_under_another_name_hides_nothing(table: MergedInDelta, name: str) -> None:
    check_copies_hide_nothing(table, name)


@in_bucket
def test_nor_does_one_in_a_bucket(table: MergedInDelta) -> None:
    check_copies_hide_nothing(table, "99999")


def check_copies_hide_nothing(table: MergedInDelta, name: str) -> None:
    copy_newest(table, name)
    table.publish(4, change(id=5))
    copy_newest(table, name)
    table.table().restore(1)
    with pytest.raises(SinkError, match="put the rows"):
        table.sink.check()


def test_what_others_have_committed_since_is_named_beside_the_command_that_takes_it_out(table: MergedInDelta) -> None:
    table.table().restore(1)
    write_deltalake(table.table(), table.table().to_pyarrow_table().slice(0, 1), mode="append")
    with pytest.raises(SinkError, match=r"takes out what others have committed since \(version 4: WRITE by"):
        table.sink.check()


def test_a_rewind_over_it_is_refused_before_its_first_step(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    world = World(tmp_path, sink=DeltaSink(str(lake), merge=Merge(keys=["id"], sequence_by=["version"])))
    engine = InlineEngine(
        transform=lambda sources: [
            {**row, "version": 1, "_deleted": False} for rows in sources.values() for row in rows
        ]
    )
    for number in range(3):
        world.land(number)
        world.run(number, engine)
    world.expire_leases()
    DeltaTable(str(lake)).restore(1)
    status, text = said(["rewind", world.pipeline.checkpoint, "--to", "0", "--drop-output"])
    assert status == 2
    assert "put the rows of the Delta table" in text
    assert world.checkpoint.maintenance.unfinished() is None
