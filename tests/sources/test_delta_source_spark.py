"""A real Spark reads exactly the planned versions of Delta tables: of delta-rs, and of Delta's own Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from airflow_provider_microbatch.exceptions import SourceChangedError
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime.delta import read
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.sources.delta import DeltaSource
from tests.airflow_face.support import context
from tests.environments import jars
from tests.sinks.delta_world import opened, publish
from tests.sources.delta_world import World
from tests.support.local_spark import DELTA, local_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TRANSFORM = """
def transform(batch):
    return batch.sources["orders"].withColumnRenamed("batch_id", "upstream").drop("lane")
"""
NOTES = ["a b", "50%/ü=?", "_c", None]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    conf = {**DELTA, "spark.sql.shuffle.partitions": "1"}
    own = [jar for jar in jars("delta") if jar.name.startswith(("delta-", "RoaringBitmap", "shims", "unitycatalog"))]
    with local_spark(cores=2, jars=own, conf=conf) as session:
        yield session


def frame(spark: SparkSession, source: OpenSource, start: str | None, end: str | None) -> DataFrame:
    """What the range reads as; the plan travels as JSON."""
    return read(spark, json.loads(json.dumps(source.read(start, end).arguments))).frame


def ids(found: DataFrame) -> list[int]:
    return sorted(row.id for row in found.collect())


def batches(spark: SparkSession, world: World, **arguments: Any) -> list[list[int]]:
    """The ids of all batches up to the table's head."""
    found = []
    while (ends := world.plan(**arguments))[0] != ends[1]:
        found.append(ids(frame(spark, world.open(**arguments), *ends)))
    return found


def test_a_snapshot_is_read_in_limited_batches_and_then_what_comes(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(5):
        world.orders.append(2)
    first = world.plan(max_files=2)
    assert ids(frame(spark, world.open(), *first)) == [0, 1, 2, 3]
    world.orders.append()
    world.orders.table.optimize.compact()
    world.orders.append()
    assert batches(spark, world, max_files=2) == [[4, 5, 6, 7], [8, 9, 10], [11]]
    assert ids(frame(spark, world.open(), *first)) == [0, 1, 2, 3], "a replay, though its files are out of the table"
    empty = frame(spark, world.open(), first[1], first[1])
    assert (empty.count(), empty.schema) == (0, frame(spark, world.open(), *first).schema)


def test_partitions_of_all_kinds_of_names_are_read_back(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path / "my lake", partition_by=["note"])
    for note in NOTES:
        world.orders.append(note=note)
    first = world.plan()
    for note in NOTES:
        world.orders.append(note=note)
    for ends, start in ((first, 0), (world.plan(), 4)):
        rows = frame(spark, world.open(), *ends).collect()
        assert {(row.id, row.note) for row in rows} == {(id, note) for id, note in enumerate(NOTES, start=start)}


def test_rows_of_deletion_vectors_and_mapped_columns_are_read_as_delta_has_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = World(tmp_path, made=False)
    path = world.root
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT, total DOUBLE, note STRING) USING delta PARTITIONED BY (note) "
        "TBLPROPERTIES ('delta.enableDeletionVectors'='true', 'delta.columnMapping.mode'='name')"
    )
    spark.sql(f"INSERT INTO delta.`{path}` SELECT id, id, 'a b' FROM range(0, 10, 1, 1)")
    spark.sql(f"INSERT INTO delta.`{path}` SELECT id, id, '50%/ü=?' FROM range(10, 14, 1, 1)")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id IN (3, 4)")
    first = world.plan(max_files=1)
    spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN total TO sum")
    spark.sql(f"INSERT INTO delta.`{path}` SELECT id, id, 'c' FROM range(20, 22, 1, 1)")
    found = [frame(spark, world.open(), *first)]
    while (ends := world.plan(max_files=1))[0] != ends[1]:
        found.append(frame(spark, world.open(), *ends))
    assert sorted(map(ids, found)) == [[0, 1, 2, 5, 6, 7, 8, 9], [10, 11, 12, 13], [20, 21]]
    assert [one.columns for one in found] == [["id", "total", "note"]] * 2 + [["id", "sum", "note"]]
    assert world.open().read(*ends).requires.packages == ()
    assert world.open().read(*first).requires.packages == ("io.delta:delta-spark_4.1_2.13:4.4.0",)


def test_a_change_feed_tells_how_rows_change(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path, change_feed=True)
    world.orders.append(3)
    first = world.plan(change_feed=True)
    spark.sql(f"UPDATE delta.`{world.root}` SET note = 'new' WHERE id = 1")
    spark.sql(f"DELETE FROM delta.`{world.root}` WHERE id = 2")
    world.orders.append()
    second = world.plan(change_feed=True)
    spark.sql(f"DELETE FROM delta.`{world.root}`")
    kinds = "_change_type"
    rows = frame(spark, world.open(change_feed=True), *first).collect()
    assert [(row.id, row[kinds], row._commit_version) for row in rows] == [(id, "insert", 1) for id in range(3)]
    found = Counter(
        (row.id, row.note, row[kinds], row._commit_version)
        for row in frame(spark, world.open(change_feed=True), *second).collect()
    )
    assert found == Counter(
        [
            (1, "x", "update_preimage", 2),
            (1, "new", "update_postimage", 2),
            (2, "x", "delete", 3),
            (3, "x", "insert", 4),
        ]
    )
    skipping = world.open(change_feed=True, skip_versions=[3])
    assert ids(frame(spark, skipping, *second)) == [1, 1, 3]
    third = world.plan(change_feed=True)
    assert {row[kinds] for row in frame(spark, world.open(change_feed=True), *third).collect()} == {"delete"}


def test_a_table_is_restored_by_its_log_and_appends_stop(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.orders.append()
    world.orders.append()
    world.plan()
    spark.sql(f"RESTORE TABLE delta.`{world.root}` TO VERSION AS OF 1")
    with pytest.raises(SourceChangedError, match=r"version 3 .* no append: RESTORE .*skip_versions=\[3\]"):
        world.plan()
    assert DeltaTable(world.root.as_uri()).version() == 3


def test_what_a_restore_brings_back_is_no_append_and_is_in_the_change_feed(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path, change_feed=True)
    world.orders.append(2)
    world.plan()
    world.orders.table.delete()
    spark.sql(f"RESTORE TABLE delta.`{world.root}` TO VERSION AS OF 1")
    with pytest.raises(SourceChangedError, match=r"version 3 .* no append: RESTORE .*skip_versions=\[2, 3\]"):
        world.plan(skip_versions=[2])
    told = list[tuple[str, int]]()
    while (ends := world.plan(change_feed=True))[0] != ends[1]:
        rows = frame(spark, world.open(change_feed=True), *ends).collect()
        told += sorted((row._change_type, row.id) for row in rows)
    assert told == [("delete", 0), ("delete", 1), ("insert", 0), ("insert", 1)]


def test_a_pipeline_reads_what_another_has_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And does so by Spark as it is, without a jar of Delta's."""
    world = World(tmp_path, made=False)
    upstream = opened(world.root)
    for number in (6, 7):
        publish(upstream, number)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "orders.py").write_text(TRANSFORM)
    lake = DeltaSink(str(tmp_path / "lake"))
    pipeline = Pipeline(
        "orders",
        checkpoint=str(tmp_path / "checkpoints" / "orders"),
        sources={"orders": DeltaSource(str(world.root), packages=["not:needed:1"], max_files=1)},
        sink=lake,
        transform="orders.py:transform",
    )
    operator = MicroBatchOperator(
        task_id="micro_batch", pipeline=pipeline, conn_id="spark_default", conf={"spark.ui.enabled": "false"}
    )
    summary = operator.execute(context(bundle))
    assert (summary["state"], summary["rows_out"]) == ("committed", 3)
    found = DeltaTable(lake.root.as_uri()).to_pyarrow_table().to_pylist()
    assert Counter((row["upstream"], row["batch_id"]) for row in found) == {(6, 0): 3}
