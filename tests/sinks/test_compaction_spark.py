"""What Spark has written, and a compaction has joined, Spark reads as before: rows, types and partitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.runtime import report, write
from airflow_provider_microbatch.sinks import Compaction, OpenSink
from airflow_provider_microbatch.sinks.file import FileSink
from tests.sinks.stages import CHECKPOINT, NOTHING_KNOWN, batch_of, expect
from tests.support.local_spark import local_spark

pytestmark = pytest.mark.spark

KINDS = (
    "id",
    "'day-' || id % 2 as day",
    "if(id = 3, null, id * 1.5d) as amount",
    "cast('NaN' as double) as odd",
    "cast(id as decimal(9, 2)) as small",
    "cast(id as decimal(18, 4)) as price",
    "cast(id as decimal(38, 6)) as large",
    "cast(id as byte) as tiny",
    "cast(id as short) as little",
    "cast(id as float) as single",
    "id % 2 = 0 as even",
    "date_add(date'0001-01-01', cast(id as int)) as old",
    "timestamp_micros(-id - 1) as before",
    "timestamp'9999-12-31 23:59:59.999999' as late",
    "encode('x' || id, 'UTF-8') as bytes",
    "array('a', null, 'b') as tags",
    "slice(array(id), 1, 0) as none",
    "map('k', id, 'l', null) as counts",
    "named_struct('x', id, 'y', array(named_struct('z', timestamp_micros(id)))) as nested",
)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with local_spark() as session:
        yield session


def publish(spark: Any, sink: OpenSink, number: int, columns: Sequence[str], *, files: int = 3) -> None:
    """A batch as the runtime writes it, in so many files."""
    batch = batch_of(BatchKey("live", number))
    stage = sink.stage(batch, 1)
    frame = spark.range(number * 10, number * 10 + 6, numPartitions=files).selectExpr(*columns)
    writer = getattr(write, stage.writer.rpartition(":")[2])
    listing = writer(frame, stage.arguments)
    result = {"batchId": number, "epoch": 1, "identity": batch.to_dict(), "numOutputRows": 6}
    report.write_manifest(spark, stage.report, result, listing)
    sink.publish(expect(BatchKey("live", number)), 1)


def compacted(sink: OpenSink) -> Any:
    return sink.compact(Compaction(checkpoint=CHECKPOINT, tables=NOTHING_KNOWN, left_alone=lambda found: None))


def rows(frame: Any) -> tuple[Any, list[str]]:
    return frame.schema, sorted(str(row) for row in frame.collect())


@pytest.mark.parametrize(
    ("times", "partitions"),
    [("INT96", ()), ("TIMESTAMP_MICROS", ()), ("TIMESTAMP_MILLIS", ("day",))],
    ids=["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS by day"],
)
def test_parquet_of_all_kinds(spark: Any, tmp_path: Path, times: str, partitions: tuple[str, ...]) -> None:
    sink = FileSink(str(tmp_path / "table"), partition_by=partitions)
    spark.conf.set("spark.sql.parquet.outputTimestampType", times)
    try:
        for number in range(2):
            publish(spark, sink, number, KINDS)
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    before = rows(spark.read.parquet(str(sink.root)))
    done = compacted(sink)
    assert (done.left, done.files_after) == ({}, 4 if partitions else 2)
    assert done.files_before > done.files_after
    assert rows(spark.read.parquet(str(sink.root))) == before


def test_times_in_96_bits_to_whom_reads_them_by_their_writer(spark: Any, tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path / "table"))
    publish(spark, sink, 0, ["id", "timestamp'2026-01-01 12:00:00' as ts"])
    conf = {"spark.sql.session.timeZone": "America/New_York", "spark.sql.parquet.int96TimestampConversion": "true"}
    kept = {name: spark.conf.get(name) for name in conf}
    try:
        for name, value in conf.items():
            spark.conf.set(name, value)
        before = rows(spark.read.parquet(str(sink.root)))
        assert compacted(sink).files_after == 1
        assert rows(spark.read.parquet(str(sink.root))) == before
    finally:
        for name, value in kept.items():
            spark.conf.set(name, value)


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("format", ["json", "csv"])
def test_lines(spark: Any, tmp_path: Path, format: str, codec: str) -> None:
    sink = FileSink(str(tmp_path / "table"), format=format, options={"compression": codec})
    publish(spark, sink, 0, ["id", "'a \\n\"b\", ' || id as note"])
    reader = spark.read.option("multiLine", str(format == "csv").lower()).format(format)
    before = rows(reader.load(str(sink.root)))
    done = compacted(sink)
    assert (done.left, done.files_before, done.files_after) == ({}, 3, 1)
    assert rows(reader.load(str(sink.root))) == before
