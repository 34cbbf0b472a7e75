"""A batch that Spark has written, published into a Delta table: types and partitions, as delta-rs reads them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyarrow.dataset import ParquetReadOptions

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.runtime import report, write
from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.delta import DeltaSink
from tests.runtime.jobs import EXPECTED, ROWS, land, make_job
from tests.sinks.delta_stages import write_rows
from tests.sinks.stages import batch_of, expect
from tests.support.local_spark import local_spark

pytestmark = pytest.mark.spark

NOTES = ["a b", "50%/ü=?", "_c"]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with local_spark() as session:
        yield session


def table(sink: DeltaSink) -> DeltaTable:
    return DeltaTable(sink.root.as_uri())


def rows_of(sink: DeltaSink) -> list[dict[str, Any]]:
    # Spark's times of 96 bits are nanoseconds to Arrow, unless it is told: these end in the year 2262.
    options = ParquetReadOptions(coerce_int96_timestamp_unit="us")
    found: list[dict[str, Any]] = (
        table(sink).to_pyarrow_dataset(parquet_read_options=options).to_table().sort_by("id").to_pylist()
    )
    return found


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_batch_of_spark_is_read_back_with_its_partitions(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    if elsewhere:
        # As where Spark's driver is on another host: then Spark lists the stage and writes what it tells.
        for module in (write, report):
            monkeypatch.setattr(module, "folder_beside_driver", lambda spark, address: None)
    sink = DeltaSink(str(tmp_path / "my lake"), partition_by=("note",))
    opened = sink.open(SinkContext())
    orders = land(tmp_path / "landing", [*ROWS, {"id": 4, "note": None}])
    run_job(spark, make_job(sink, "keep", [orders]))
    manifest = opened.publish(EXPECTED, 1)
    assert opened.contains(EXPECTED) == manifest
    found = table(sink).to_pyarrow_table().to_pylist()
    assert {(row["id"], row["note"], row["lane"], row["batch_id"]) for row in found} == {
        (id, note, "live", 0) for id, note in enumerate([*NOTES, None], start=1)
    }


def test_values_of_all_kinds_survive_that_their_file_is_taken_apart(spark: Any, tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "lake"))
    opened = sink.open(SinkContext())
    orders = land(tmp_path / "landing")
    run_job(spark, make_job(sink, "of_all_kinds", [orders]))
    opened.publish(EXPECTED, 1)
    before = rows_of(sink)
    assert before[0]["far"] == dt.datetime(2999, 12, 31, 10, tzinfo=dt.UTC)
    later = batch_of(BatchKey("live", 1))
    allowing = DeltaSink(sink.path, schema_policy="add_columns").open(SinkContext())
    write_rows(allowing, 1, [[{"id": 9}]], {"id": "long"}, batch=later)
    allowing.publish(expect(later.key), 1)
    table(sink).optimize.compact()
    assert len(table(sink).file_uris()) == 1
    assert opened.withdraw(expect(later.key), 1)
    after = rows_of(sink)
    assert after == before
