"""An Iceberg table that somebody has made by CREATE TABLE AS SELECT of one of ours: it has rows with our columns, and
no record of their batches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.table import DataScan

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.iceberg.opened import OpenIceberg
from tests.sinks.stages import expect
from tests.sinks.test_iceberg_sink import append, expire, publish, rows, table
from tests.sinks.test_iceberg_sink import folder as folder
from tests.sinks.test_iceberg_sink import sink as sink
from tests.support.iceberg_table import opened_in


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
    with pytest.raises(SinkError, match="no record"):
        publish(copy, 5)  # the first one, as where the checkpoint is a new one, too
    table(copy).delete("lane = 'live' AND batch_id = 5")
    publish(copy, 5, epoch=2)
    is_refused(copy, 6)
    left = copy.unrecorded(expect(BatchKey("live", 6)), [])
    assert left is not None
    assert "DELETE FROM shop.copy WHERE lane = 'live' AND batch_id = 6" in left
    expire(copy)
    is_refused(copy, 6)
    table(copy).delete("lane = 'live' AND batch_id = 6")
    assert copy.unrecorded(expect(BatchKey("live", 6)), []) is None
    publish(copy, 6, epoch=3)
    assert rows(copy) == {(5, 2): 3, (6, 3): 3, (7, 1): 3}
    assert copy.unrecorded(expect(BatchKey("live", 6)), []) is None


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
