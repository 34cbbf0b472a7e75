"""A real Spark reads shards, and a tunnel's channels, by its executors: up to where they come, and then exactly what
was read once more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime import secrets
from airflow_provider_microbatch.runtime.channels import ChannelError, read
from airflow_provider_microbatch.runtime.files import ReadResult
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.kinesis import KinesisSource
from tests.airflow_face.support import context
from tests.sources import test_tablestore
from tests.sources.test_kinesis import World
from tests.support import kinesis
from tests.support.local_spark import local_spark
from tests.support.tablestore_tunnels import PUT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_spark(cores=2) as session:
        yield session


@pytest.fixture(autouse=True)
def task() -> Iterator[None]:
    with lifetime():
        yield
    secrets.give({})


def late(spark: SparkSession, world: World, start: str | None) -> ReadResult:
    """What an attempt reads from there; the plan travels as JSON."""
    source = world.open()
    secrets.give({f"orders/{name}": value for name, value in source.secrets().items()})
    return read(spark, json.loads(json.dumps(source.read_late(start).arguments)))


def values(frame: DataFrame) -> list[str]:
    return sorted(row.data.decode() for row in frame.collect())


def test_a_frame_that_is_used_twice_has_the_same_rows_though_more_come(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path, shards=2, max_partitions=1)
    world.stream.send(["1", "2"])
    world.stream.send(["3"], at=0.9)
    source = world.open()
    source.latest_offset(None)
    start = source.initial_offset()
    found = late(spark, world, start)
    assert values(found.frame) == ["1", "2", "3"]
    world.stream.send(["4"])
    assert found.frame.join(found.frame.select("data"), "data").count() == 3
    assert found.ended is not None
    told = found.ended()
    end = source.resolve(start, told)
    again = read(spark, json.loads(json.dumps(source.read(start, end).arguments)))
    assert values(again.frame) == ["1", "2", "3"]
    assert again.ended is not None
    assert source.resolve(start, again.ended()) == end
    assert values(late(spark, world, end).frame) == ["4"]
    empty = read(spark, source.read(end, end).arguments)
    assert empty.frame.schema == again.frame.schema
    assert empty.frame.count() == 0


def test_what_was_not_read_to_its_end_ends_nowhere(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path, shards=2)
    world.stream.send(["1", "2"])
    world.stream.send(["3"], at=0.9)
    found = late(spark, world, None)
    found.frame.limit(0).collect()
    assert found.ended is not None
    with pytest.raises(ChannelError, match=r"orders.*2 of 2 channels were not read to their end"):
        found.ended()


def test_changes_of_a_table_reach_the_transform_by_name_and_type(spark: SparkSession, tmp_path: Path) -> None:
    world = test_tablestore.World(tmp_path, shards=2, max_partitions=1)
    world.table.write(PUT, {"id": 1}, {"amount": 2.5, "paid": True})
    world.table.write(PUT, {"id": 2}, {"amount": float("inf")}, at=0.9)
    world.table.update({"id": 1}, {"amount": {"delete": True}})
    source = world.open()
    secrets.give({f"orders/{name}": value for name, value in source.secrets().items()})
    found = read(spark, json.loads(json.dumps(source.read_late(None).arguments)))
    rows = found.frame.orderBy("sequence").selectExpr(
        "cast(primaryKey['id'] as long) id",
        "operation",
        "cast(get(filter(columns, c -> c.name = 'amount'), 0).value as double) amount",
        "columns.operation changes",
        "unix_micros(recordTimestamp) = cast(split_part(sequence, '-', 2) as long) same",
    )
    assert [tuple(row) for row in rows.collect()] == [
        (1, "put", 2.5, ["put", "put"], True),
        (2, "put", float("inf"), ["put"], True),
        (1, "update", None, ["delete"], True),
    ]
    assert found.ended is not None
    assert source.resolve(None, found.ended()) is not None


TRANSFORM = """
def transform(batch):
    orders = batch.sources["orders"]
    # Read twice: once to be counted, once to be written.
    count = orders.count()
    return orders.selectExpr("cast(data as string) as value", "shardId", f"{count} as count")
"""


def test_batches_go_through_operator_and_spark_submit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = kinesis.Stream(shards=2)
    stream.send(["1", "2"])
    stream.send(["3"], at=0.9)
    connection = kinesis.connection()
    given = {"conn_type": "aws", "login": kinesis.KEY, "password": kinesis.SECRET, "extra": dict(connection.extra)}
    monkeypatch.setenv("AIRFLOW_CONN_KINESIS", json.dumps(given))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "orders.py").write_text(TRANSFORM)
    pipeline = Pipeline(
        "orders",
        checkpoint=str(tmp_path / "checkpoints" / "orders"),
        sources={"orders": KinesisSource(stream.name, conn_id="kinesis", idle_seconds=0)},
        sink=FileSink(str(tmp_path / "lake"), format="json"),
        transform="orders.py:transform",
    )
    operator = MicroBatchOperator(
        task_id="micro_batch", pipeline=pipeline, conn_id="spark_default", conf={"spark.ui.enabled": "false"}
    )
    caplog.set_level("DEBUG", logger="airflow_provider_microbatch")
    summary = operator.execute(context(bundle))
    assert (summary["state"], summary["rows_out"]) == ("committed", 3)
    lines = [line for path in (tmp_path / "lake").rglob("part-*.json") for line in path.read_text().splitlines()]
    assert sorted((json.loads(line)["value"], json.loads(line)["count"]) for line in lines) == [
        ("1", 3),
        ("2", 3),
        ("3", 3),
    ]
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert kinesis.SECRET.encode() not in stored
    assert kinesis.SECRET not in caplog.text
