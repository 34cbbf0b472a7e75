"""Delta's own Spark reads a table whose small files were joined as before, and can go on with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.delta import DeltaSink
from tests.environments import jars
from tests.sinks.test_compaction_spark import KINDS, compacted, publish, rows
from tests.support.local_spark import DELTA, local_spark

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    conf = {**DELTA, "spark.sql.shuffle.partitions": "1"}
    own = [jar for jar in jars("delta") if jar.name.startswith(("delta-", "RoaringBitmap", "shims", "unitycatalog"))]
    with local_spark(cores=2, jars=own, conf=conf) as session:
        yield session


@pytest.mark.parametrize("partitions", [(), ("day",)], ids=["flat", "partitioned"])
def test_rows_of_all_kinds_and_what_follows(spark: Any, tmp_path: Path, partitions: tuple[str, ...]) -> None:
    sink = DeltaSink(str(tmp_path / "lake"), partition_by=partitions).open(SinkContext())
    for number in range(3):
        publish(spark, sink, number, KINDS)
    read = spark.read.format("delta")
    before = rows(read.load(str(tmp_path / "lake")))
    version = spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path}/lake`").count() - 1
    done = compacted(sink)
    assert (done.left, done.files_after, len(done.batches)) == ({}, 2 if partitions else 1, 3)
    assert rows(read.load(str(tmp_path / "lake"))) == before
    assert rows(read.option("versionAsOf", str(version)).load(str(tmp_path / "lake"))) == before
    stream = spark.readStream.format("delta").option("startingVersion", str(version + 1)).load(str(tmp_path / "lake"))
    query = stream.writeStream.format("memory").queryName("followed").trigger(availableNow=True).start()
    query.awaitTermination()
    assert spark.table("followed").count() == 0, "who follows the table reads no row again"
    spark.sql(f"DELETE FROM delta.`{tmp_path}/lake` WHERE id = 11")
    spark.sql(f"OPTIMIZE delta.`{tmp_path}/lake`")
    assert spark.read.format("delta").load(str(tmp_path / "lake")).count() == 17
