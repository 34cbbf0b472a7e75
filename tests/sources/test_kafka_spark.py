"""A real Spark reads exactly the planned offsets of a real broker, by its own connector."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime.kafka import read
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.sources.intervals import Interval
from airflow_provider_microbatch.sources.kafka.offsets import render
from tests.airflow_face.support import context
from tests.environments import jars
from tests.sources.kafka_world import World
from tests.support.kafka import PASSWORD
from tests.support.local_spark import local_spark
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

T0 = 1_790_000_000_000
CONNECTOR = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")


def connector() -> list[Path]:
    """The jars that Spark needs beside its own."""
    return [jar for jar in jars("kafka-connector") if jar.name.startswith(CONNECTOR)]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_spark(cores=2, jars=connector()) as session:
        yield session


def frame(spark: SparkSession, source: OpenSource, start: str | None, end: str | None) -> DataFrame:
    """What the range reads as; the plan travels as JSON."""
    return read(spark, json.loads(json.dumps(source.read(start, end).arguments))).frame


def values(found: DataFrame) -> list[str]:
    return sorted(row.value.decode() for row in found.collect())


def test_ranges_have_each_record_once_and_the_same_again_while_others_write(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = World(tmp_path, partitions=2)
    ranges, seen = [], []
    for number in range(3):
        world.broker.send(world.topic, [f"{number}-a", f"{number}-b"], partition=0)
        world.broker.send(world.topic, [f"{number}-c"], partition=1)
        ranges.append(world.plan())
        world.broker.send(world.topic, [f"{number}-late"], partition=1)
        seen.append(values(frame(spark, world.open(), *ranges[-1])))
    assert seen == [["0-a", "0-b", "0-c"], ["0-late", "1-a", "1-b", "1-c"], ["1-late", "2-a", "2-b", "2-c"]]
    assert [values(frame(spark, world.open(), *one)) for one in ranges] == seen


def test_columns_are_those_of_sparks_own_connector(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.broker.send(world.topic, ["x"], headers=[("kind", b"order")], at_ms=1_795_000_000_123)
    start, end = world.plan(headers=True)
    full, empty = (frame(spark, world.open(headers=True), *one) for one in ((start, end), (end, end)))
    assert empty.schema == full.schema
    (row,) = full.collect()
    assert full.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    assert (row.value, row.topic, row.partition, row.offset) == (b"x", world.topic, 0, 0)
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("kind", b"order")]
    assert empty.count() == 0
    plain = frame(spark, world.open(), start, end)
    assert plain.columns == full.columns[:-1]
    assert frame(spark, world.open(), end, end).schema == plain.schema


def test_aborted_and_open_transactions_are_in_no_batch(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.broker.transaction(world.topic, ["a", "b"])
    world.broker.transaction(world.topic, ["never"], abort=True)
    world.broker.transaction(world.topic, ["c"])
    first = world.plan()
    assert world.open().describe(*first).splits == 7, "two control records, and the aborted record with its own"
    assert values(frame(spark, world.open(), *first)) == ["a", "b", "c"]
    producer = world.broker.producer({"transactional.id": world.topic})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(world.topic, "open")
    producer.flush(10)
    world.send()
    assert not world.open().has_new(first[1])
    assert world.open().latest_offset(first[1]) == first[1]
    # As it was read before isolation was set: that is no topic which was made again.
    dirty = world.open(isolation="read_uncommitted").latest_offset(first[1])
    assert world.open().latest_offset(dirty) == dirty
    producer.commit_transaction(10)
    wait_until(lambda: world.broker.is_settled(world.topic))
    assert values(frame(spark, world.open(), *world.plan())) == ["0-0", "open"]
    everything = world.open(isolation="read_uncommitted")
    assert values(frame(spark, everything, *first)) == ["a", "b", "c", "never"]


def test_records_that_go_while_they_are_read_fail_the_attempt(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.send(4)
    ends = world.plan()
    arguments = world.open().read(*ends).arguments
    world.broker.delete_before(world.topic, 0, 2)
    with pytest.raises(Exception, match=r"(?i)data.*lost|offset"):
        read(spark, arguments).frame.collect()
    assert values(frame(spark, world.open(on_data_loss="record_gap"), *ends)) == ["0-2", "0-3"]


def test_pieces_of_an_interval_are_read_and_the_live_lane_leaves_them_out(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path, partitions=2)
    for number in range(6):
        world.broker.send(world.topic, [str(number)], partition=number % 2, at_ms=T0 + number * 1000)
    interval = world.open(lane="interval-a")
    start, end = interval.plan_interval(Interval(start_ms=T0 + 2000, end_ms=T0 + 4000), world.held)
    assert values(frame(spark, world.open(lane="interval-a"), start, end)) == ["2", "3"]
    assert values(frame(spark, world.open(), *world.plan())) == ["0", "1", "4", "5"]


def test_positions_are_written_as_spark_writes_them(spark: SparkSession) -> None:
    """Byte for byte: a streaming query compares its own text of a position with that of its log."""
    jvm: Any = spark._jvm
    chance = random.Random(14)
    for _ in range(60):
        position = {
            ("".join(chance.choices("abcZ09.-_é", k=chance.randint(1, 12))), chance.choice([0, 1, 7, 16, 33, 4096])): at
            for at in range(chance.choice([1, 2, 5, 12, 40]))
        }
        by_topic: dict[str, dict[int, int]] = {}
        for (topic, number), at in position.items():
            by_topic.setdefault(topic, {})[number] = at
        utils = jvm.org.apache.spark.sql.kafka010.JsonUtils
        assert render(position) == utils.partitionOffsets(utils.partitionOffsets(json.dumps(by_topic)))


TRANSFORM = """
def transform(batch):
    return batch.sources["orders"].selectExpr("cast(value as string) as value", "offset")
"""


def read_by(world: World, group: str) -> set[tuple[int, int]] | None:
    """What the brokers know that a group has read; None while they get ready to know such things, at the first
    question."""
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException

    (told,) = world.broker.admin().list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    try:
        return {(one.partition, one.offset) for one in told.result().topic_partitions}
    except KafkaException:
        return None


def test_a_batch_goes_through_operator_and_spark_submit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By SASL and TLS from a connection: without, there is nothing more to hand over than what the tests above have."""
    world = World(tmp_path, partitions=2)
    world.send(3)
    world.send(2, partition=1)
    wait_until(lambda: read_by(world, f"{world.topic}-group") == set())
    extra = {**world.broker.login, "group.id": "whoever"}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_SECURED", json.dumps({"conn_type": "kafka", "extra": extra}))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "orders.py").write_text(TRANSFORM)
    pipeline = Pipeline(
        "orders",
        checkpoint=str(tmp_path / "checkpoints" / "orders"),
        sources={
            "orders": world.source(
                jars=[str(jar) for jar in connector()], group_id=f"{world.topic}-group", conn_id="kafka_secured"
            )
        },
        sink=FileSink(str(tmp_path / "lake"), format="json"),
        transform="orders.py:transform",
    )
    operator = MicroBatchOperator(
        task_id="micro_batch", pipeline=pipeline, conn_id="spark_default", conf={"spark.ui.enabled": "false"}
    )
    caplog.set_level("DEBUG")
    summary = operator.execute(context(bundle))
    assert (summary["state"], summary["rows_out"]) == ("committed", 5)
    lines = [line for path in (tmp_path / "lake").rglob("part-*.json") for line in path.read_text().splitlines()]
    assert sorted(json.loads(line)["value"] for line in lines) == ["0-0", "0-1", "0-2", "1-0", "1-1"]
    assert read_by(world, f"{world.topic}-group") == {(0, 3), (1, 2)}
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in (PASSWORD, json.dumps(PASSWORD)[1:-1]):
        assert secret.encode() not in stored
        assert secret not in caplog.text
