"""An Iceberg table that somebody has made by CREATE TABLE AS SELECT of one of ours: it has rows with our columns, and
no record of their batches."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import DataScan, FileScanTask, Table

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.iceberg import log as iceberg_log
from airflow_provider_microbatch.sinks.iceberg import unrecorded
from airflow_provider_microbatch.sinks.iceberg.opened import OpenIceberg
from airflow_provider_microbatch.sinks.iceberg.unrecorded import RowsInFiles
from airflow_provider_microbatch.sinks.placed.unrecorded import Asked
from tests.sinks.delta_stages import write_delta_stage, write_rows
from tests.sinks.stages import batch_of, expect
from tests.sinks.test_iceberg_sink import append, expire, publish, rows, table
from tests.sinks.test_iceberg_sink import folder as folder
from tests.sinks.test_iceberg_sink import sink as sink
from tests.support.clock import clock
from tests.support.iceberg_table import opened_in

JANUARY = "interval-20260101T000000Z-20260201T000000Z"
FEBRUARY = "interval-20260201T000000Z-20260301T000000Z"


def made_of(folder: Path, found: pa.Table, name: str) -> OpenIceberg:
    """A table of somebody else's, with these rows."""
    at = opened_in(folder, name)
    catalog = at._log.catalog.get()
    catalog.create_namespace_if_not_exists("shop")
    made = catalog.create_table(f"shop.{name}", found.schema, location=f"file://{folder / name}")
    made.append(found)
    return at


@pytest.fixture
def copy(sink: OpenIceberg, folder: Path) -> OpenIceberg:
    """A table with the rows of batches 5 to 7 in one file, and of no record."""
    for number in (5, 6, 7):
        publish(sink, number)
    return made_of(folder, table(sink).scan().to_arrow(), "copy")


def is_refused(sink: OpenIceberg, number: int, *, epoch: int = 2) -> None:
    before, version = rows(sink), table(sink).metadata_location
    told = rf"has 3 rows of batch live/{number}, and its properties have no record of it: .* Nothing was published"
    with pytest.raises(SinkError, match=told):
        publish(sink, number, epoch=epoch)
    assert (rows(sink), table(sink).metadata_location) == (before, version)


def test_a_batch_that_is_made_again_is_not_put_beside_rows_of_it_that_were_copied(copy: OpenIceberg) -> None:
    publish(copy, 8)
    is_refused(copy, 6)
    left = copy.unrecorded(expect(BatchKey("live", 6)), [])
    assert left is not None
    assert "DELETE FROM shop.copy WHERE lane = 'live' AND batch_id = 6" in left
    expire(copy)
    is_refused(copy, 6)
    table(copy).delete("lane = 'live' AND batch_id = 6")
    assert copy.unrecorded(expect(BatchKey("live", 6)), []) is None
    publish(copy, 6, epoch=3)
    assert rows(copy) == {(5, 1): 3, (6, 3): 3, (7, 1): 3, (8, 1): 3}
    assert copy.unrecorded(expect(BatchKey("live", 6)), []) is None


@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize("number", [0, 5])
def test_nor_does_a_checkpoint_begin_anew_below_them(copy: OpenIceberg, number: int, epoch: int) -> None:
    """Each later batch would come beside its rows as the first attempt at it: only the table's first looks for them."""
    before, told = rows(copy), "9 rows of batches live/5, live/6, live/7, and its properties have no record of them: "
    with pytest.raises(SinkError, match=told) as refused:
        publish(copy, number, epoch=epoch)
    assert rows(copy) == before
    condition = "lane = 'live' AND batch_id BETWEEN 5 AND 7"
    assert f"(DELETE FROM shop.copy WHERE {condition})" in str(refused.value)
    table(copy).delete(condition)
    for one in (number, 6):
        publish(copy, one, epoch=epoch)
    assert rows(copy) == {(number, epoch): 3, (6, epoch): 3}


def of_lanes(batches: Mapping[str, Sequence[int]]) -> pa.Table:
    made = [
        {"id": row, "epoch": 1, "lane": lane, "batch_id": id}
        for lane in batches
        for id in batches[lane]
        for row in range(3)
    ]
    return pa.Table.from_pylist(made)


def put(sink: OpenIceberg, key: BatchKey, epoch: int = 1, *, past: Mapping[str, int] | None = None) -> None:
    """:param past: the newest batches that the checkpoint has committed."""
    write_delta_stage(sink, epoch, batch=batch_of(key))
    asked = replace(expect(key), is_past=lambda one: one.id <= (past or {}).get(one.lane, -1))
    (sink.replace if asked.is_past(key) else sink.publish)(asked, epoch)


def test_the_rows_of_all_its_lanes_are_named_before_the_first_batch_of_any(folder: Path) -> None:
    at = made_of(folder, of_lanes({JANUARY: [0], "live": [5, 6]}), "several")
    before, past = rows(at), {JANUARY: -1, "live": 4}
    with pytest.raises(SinkError, match=r"9 rows of batches .* no record of them") as refused:
        put(at, BatchKey(JANUARY, 0), past=past)
    assert rows(at) == before
    (condition,) = re.findall(r"DELETE FROM shop.several WHERE (.*)\), then", str(refused.value))
    table(at).delete(condition)
    for key in (BatchKey(JANUARY, 0), BatchKey("live", 5)):
        put(at, key, past=past)
    assert rows(at) == {(0, 1): 3, (5, 1): 3}


def test_a_checkpoint_that_goes_on_in_a_copy_is_in_the_way_of_no_lane(folder: Path) -> None:
    """It makes none of these batches for the first time any more."""
    at, past = made_of(folder, of_lanes({JANUARY: [0], "live": [5, 6]}), "several"), {JANUARY: 0, "live": 6}
    put(at, BatchKey(FEBRUARY, 0), past=past)
    put(at, BatchKey("live", 7), past=past)
    assert rows(at) == {(0, 1): 6, (5, 1): 3, (6, 1): 3, (7, 1): 3}
    with pytest.raises(SinkError, match=r"3 rows of batch live/6, .* batch_id = 6\)"):
        put(at, BatchKey("live", 6), 2, past=past)


@pytest.mark.parametrize("publish_again", [False, True])
def test_a_clear_asks_for_rows_of_its_own_batch_alone(copy: OpenIceberg, publish_again: bool) -> None:
    """Where the copy was put in place of the table, the later batches are replayed after it; and so is one made that
    was set aside, which was never in."""
    asked = replace(expect(BatchKey("live", 5)), is_past=lambda key: key.id <= 7)
    table(copy).delete("batch_id = 5")
    write_delta_stage(copy, 2, batch=batch_of(BatchKey("live", 5)))
    (copy.publish if publish_again else copy.replace)(asked, 2)
    assert rows(copy) == {(5, 2): 3, (6, 1): 3, (7, 1): 3}


def test_rows_that_are_put_in_by_hand_are_found_in_a_file_that_tells_of_no_lane(sink: OpenIceberg) -> None:
    publish(sink, 6)
    had = table(sink).scan().to_arrow()
    with table(sink).transaction() as changes:
        changes.set_properties({f"write.metadata.metrics.column.{name}": "none" for name in ("lane", "batch_id")})
    table(sink).append(had.set_column(had.schema.get_field_index("batch_id"), "batch_id", pa.array([7] * 3)))
    is_refused(sink, 7)


def files_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found, reading = list[str](), unrecorded.read

    def counted(of: Table, task: FileScanTask, *given: Any) -> Iterator[Any]:
        found.append(task.file.file_path)
        return reading(of, task, *given)

    monkeypatch.setattr(unrecorded, "read", counted)
    return found


@pytest.mark.parametrize("number", [0, 1])
def test_files_are_read_once_and_however_long_that_takes_before_the_clock_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Of an adopted table, and of one of which a batch is made again. Others committed meanwhile, so each try was
    outrun, and the next process began at the first file."""
    at = made_of(folder, of_lanes({"north": [0, 1]}).select(["id", "epoch"]), "others")
    with table(at).update_schema() as update:
        update.union_by_name(pa.schema([("lane", pa.string()), ("batch_id", pa.int64())]))
    if number:
        publish(at, 0)
    found, reading = list[str](), unrecorded.read
    pass_by = clock(monkeypatch)

    def slow(of: Table, task: FileScanTask, *given: Any) -> Iterator[Any]:
        found.append(task.file.file_path)
        if len(found) == 1:
            pass_by(iceberg_log.PATIENCE_SECONDS)
            append(at)
        return reading(of, task, *given)

    monkeypatch.setattr(unrecorded, "read", slow)
    publish(opened_in(folder, "others"), number, epoch=2)
    assert len(found) == len(set(found)) >= 1
    assert rows(at)[number, 2] == 3


def test_before_a_first_batch_a_file_without_rows_that_are_asked_for_is_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that went on in a copy read each file of it, of which the statistics told that all is past."""
    at = made_of(folder, of_lanes({"live": [0, 1]}), "several")
    table(at).append(of_lanes({"live": [2]}))
    found = files_read(monkeypatch)
    put(at, BatchKey("live", 3), past={"live": 2})
    assert found == []


def test_one_is_that_has_some_beside_those_that_are_past(folder: Path) -> None:
    at = made_of(folder, of_lanes({"live": [4, 5, 6, 7]}), "several")
    with pytest.raises(SinkError, match=r"6 rows of batches live/6, live/7, "):
        put(at, BatchKey(JANUARY, 0), past={"live": 5})


def test_a_file_is_read_once_for_all_batches_that_are_asked_for(
    copy: OpenIceberg, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = files_read(monkeypatch)
    for number in (5, 6, 7):
        assert "3 rows" in str(copy.unrecorded(expect(BatchKey("live", number)), []))
    assert len(found) == 1


def test_for_a_batch_on_record_no_file_is_read(sink: OpenIceberg, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewind read all that it was about to take out."""
    for number in (6, 7):
        publish(sink, number)
    monkeypatch.setattr(RowsInFiles, "of", None)
    for number in (6, 7):
        assert sink.unrecorded(expect(BatchKey("live", number)), []) is None


def test_rows_that_are_put_back_after_their_batch_was_taken_out_are_found_too(sink: OpenIceberg) -> None:
    for number in (6, 7):
        publish(sink, number)
    had = table(sink).scan().to_arrow()
    assert sink.withdraw(expect(), 1)
    table(sink).append(had.slice(0, 0))
    publish(sink, 7, epoch=2)
    assert sink.withdraw(expect(), 2)
    table(sink).append(had.filter(pc.equal(had["batch_id"], 7)))
    is_refused(sink, 7, epoch=3)


def test_those_of_later_batches_are_found_where_all_batches_were_taken_out(sink: OpenIceberg) -> None:
    publish(sink, 0)
    assert sink.withdraw(expect(BatchKey("live", 0)), 1)
    table(sink).append(of_lanes({"live": [3]}).select(["id", "epoch", "lane", "batch_id"]))
    with pytest.raises(SinkError, match="live/3"):
        publish(sink, 0, epoch=2)


def test_a_table_of_others_and_rows_of_nobody_are_in_nobodys_way(folder: Path) -> None:
    ids = pa.table({"id": pa.array([1], pa.int64()), "epoch": pa.array([9], pa.int64())})
    at = made_of(folder, ids, "others")
    with table(at).update_schema() as update:
        update.union_by_name(pa.schema([("lane", pa.string()), ("batch_id", pa.int64())]))
    publish(at, 6, epoch=2)
    append(at)
    publish(at, 7, epoch=2)
    assert rows(at) == Counter({(None, 9): 2, (6, 2): 3, (7, 2): 3})


def test_what_is_made_for_the_first_time_in_a_table_of_ours_is_not_looked_for(
    sink: OpenIceberg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each publish would read all manifests."""
    publish(sink, 6)
    expire(sink)
    monkeypatch.setattr(DataScan, "plan_files", None)
    publish(sink, 7)
    monkeypatch.undo()
    assert rows(sink) == {(6, 1): 3, (7, 1): 3}


def deletes_by_values(sink: OpenIceberg) -> None:
    """As Flink does with each change of a key: pyiceberg plans no file of such a table."""
    file = next(iter(table(sink).scan().plan_files())).file
    found = DataFile.from_args(
        _table_format_version=2,
        content=DataFileContent.EQUALITY_DELETES,
        file_path=f"{file.file_path}.deletes",
        file_format=file.file_format,
        partition=file.partition,
        record_count=1,
        file_size_in_bytes=100,
        equality_ids=[1],
    )
    found.spec_id = 0
    with table(sink).transaction() as transaction, transaction.update_snapshot().fast_append() as commit:
        commit.append_data_file(found)


def test_who_deletes_rows_by_their_values_holds_up_no_retry(sink: OpenIceberg) -> None:
    publish(sink, 6)
    deletes_by_values(sink)
    publish(sink, 7, epoch=2)
    assert sink.contains(expect(BatchKey("live", 7))) is not None


def test_where_one_does_a_copy_gets_no_batch_beside_rows_that_may_be_left(copy: OpenIceberg) -> None:
    publish(copy, 8)
    deletes_by_values(copy)
    with pytest.raises(SinkError, match=r"cannot be read here: .*equality deletes.* Compact the table"):
        publish(copy, 6, epoch=2)
    publish(copy, 9, epoch=2)


def test_a_batch_without_columns_of_its_own_adds_none_to_a_table_of_somebody_else(folder: Path) -> None:
    """Nor does any other batch, unless the sink says so."""
    at, key = made_of(folder, pa.table({"id": [1], "epoch": [0]}), "theirs"), BatchKey("live", 7)
    write_rows(at, 1, [], {}, batch=batch_of(key))
    with pytest.raises(SinkError, match="does not have 'lane', 'batch_id'"):
        at.publish(expect(key), 1)
    assert [one.name for one in table(at).schema().fields] == ["id", "epoch"]


def test_however_many_batches_may_be_back_not_all_are_gone_through_for_each_file() -> None:
    gone_through = list[str]()

    class Back(frozenset[BatchKey]):
        def __iter__(self) -> Iterator[BatchKey]:
            gone_through.append("all")
            return super().__iter__()

    asked = Asked(BatchKey(JANUARY, 7), back=Back(BatchKey("live", id) for id in range(1, 100, 10)))
    found = [id for id in range(120) if asked.may_be_in(("live", "live"), (id, id))]
    assert found == list(range(1, 100, 10))
    assert [asked.may_be_in(("live", "live"), span) for span in [(2, 10), (2, 11), (92, 200), (0, 0)]] == [
        False,
        True,
        False,
        False,
    ]
    assert [asked.may_be_in((JANUARY, JANUARY), (id, id)) for id in (6, 7, 8)] == [False, True, False]
    assert not asked.may_be_in((FEBRUARY, FEBRUARY), (0, 100))
    assert len(gone_through) <= 1
