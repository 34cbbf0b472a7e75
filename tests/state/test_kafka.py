"""Streams of topics: a real broker, Spark's own connector, and exactly the offsets that were planned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import SparkKilledError
from airflow_provider_microbatch.execution.backfill import IntervalWork
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime.streaming import state_settings
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources import Source
from airflow_provider_microbatch.sources.intervals import Interval
from tests.airflow_face.support import context
from tests.execution.world import run_identity
from tests.sources.kafka_world import World
from tests.sources.test_kafka_spark import connector
from tests.state.stateful import CONF, SessionEngine, StatefulWorld
from tests.support.kafka import PASSWORD
from tests.support.local_spark import local_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

T0 = 1_790_000_000_000
COUNTS = "tests.state.transforms:counts_of_records"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_spark(jars=connector()) as session:
        yield session


class TopicWorld(StatefulWorld):
    """A stateful pipeline over a topic."""

    def __init__(self, root: Path, *, partitions: int = 1, engine: SessionEngine, **options: Any) -> None:
        super().__init__(root, COUNTS, engine=engine, checkpoint_format="v1")
        self.kafka = World(root, partitions=partitions)
        self.read_as = options

    def source(self, name: str) -> Source:
        return self.kafka.source(**self.read_as) if name == "orders" else super().source(name)

    def send(self, *values: str, partition: int = 0) -> None:
        """Records, durable on return."""
        self.kafka.broker.send(self.kafka.topic, values, partition=partition)


def test_counts_go_on_over_partitions_that_come_and_transactions_that_are_aborted(
    tmp_path: Path, spark: SparkSession
) -> None:
    world = TopicWorld(tmp_path, engine=SessionEngine(spark), max_rows=5)
    world.read_as["start"] = {world.kafka.topic: {"0": 1}}
    world.kafka.broker.transaction(world.kafka.topic, ["before it begins", "a", "b"])
    world.kafka.broker.transaction(world.kafka.topic, ["a"], abort=True)
    world.run(0)
    world.kafka.broker.grow(world.kafka.topic, 2)
    world.send("a")
    world.send("a", "c", partition=1)
    world.run(1)
    world.transform = f"{COUNTS}_twice"
    world.run(1, clear_number=1)
    replayed = world.table()[1]
    world.transform = COUNTS
    world.run(1, clear_number=2)
    world.send("c", partition=1)
    world.run(2)

    assert sorted(row["count"] for row in replayed) == [2, 5]
    assert world.table() == {
        0: [{"id": "a", "count": 1}, {"id": "b", "count": 1}],
        1: [{"id": "a", "count": 3}, {"id": "c", "count": 1}],
        2: [{"id": "c", "count": 2}],
    }
    ends = [world.checkpoint.offset_log.get(number).ends["orders"] for number in range(3)]  # type: ignore[union-attr]
    assert [list(json.loads(str(end))[world.kafka.topic].values()) for end in ends] == [[6], [7, 2], [7, 3]]


def test_records_that_are_gone_fail_the_batch_or_are_left_out_and_told(tmp_path: Path, spark: SparkSession) -> None:
    world = TopicWorld(tmp_path, engine=SessionEngine(spark), on_data_loss="record_gap")
    world.send("a", "b")
    world.run(0)
    world.send("a", "b", "c")
    assert world.execution.plan(run_identity(1)) is not None
    world.kafka.broker.delete_before(world.kafka.topic, 0, 4)
    world.run(1)

    assert world.table()[1] == [{"id": "c", "count": 1}]
    committed = world.checkpoint.commit_log.get(1)
    assert committed is not None
    assert committed.progress["read"]["orders"]["left_out"] == {world.kafka.topic: {"0": [[2, 4]]}}


def test_a_range_out_of_which_an_interval_has_taken_a_piece_has_each_other_record_once(
    tmp_path: Path, spark: SparkSession
) -> None:
    """No two offsets leave the piece out: the rows are copied."""
    engine = SessionEngine(spark)
    world = TopicWorld(tmp_path, engine=engine)
    world.options["plan"] = "interval"
    for number, value in enumerate("abca"):
        world.kafka.broker.send(world.kafka.topic, [value], at_ms=T0 + number * 1000)
    code, called = world.code()
    tables = []
    for number, seconds in enumerate([(1, 3), (0, 4)]):
        interval = Interval(start_ms=T0 + seconds[0] * 1000, end_ms=T0 + seconds[1] * 1000)
        work = IntervalWork(pipeline=world.pipeline, checkpoint=world.checkpoint, interval=interval)
        work.run(run=run_identity(number), engine=engine, code=code, transform=called)
        tables.append(world.table(work.key.lane))

    assert tables == [{0: [{"id": "b", "count": 1}, {"id": "c", "count": 1}]}, {0: [{"id": "a", "count": 2}]}]


def test_a_topic_without_a_record_and_files_are_joined(tmp_path: Path, spark: SparkSession) -> None:
    world = TopicWorld(tmp_path, engine=SessionEngine(spark))
    world.transform, world.sources = "tests.state.transforms:joined_with_records", ("orders", "payments")
    world.options["output_mode"] = "append"
    world.land("a", 1, 2, source="payments")
    world.run(0)
    world.send("2", "3")
    world.land("b", 3, source="payments")
    world.run(1)

    assert world.table() == {0: [], 1: [{"id": 2}, {"id": 3}]}
    committed = world.checkpoint.commit_log.get(1)
    assert committed is not None
    assert committed.progress["numInputRows"] == {"orders": 2, "payments": 1}


def test_state_goes_to_a_query_over_the_topic_and_back(tmp_path: Path, spark: SparkSession) -> None:
    world = TopicWorld(tmp_path, engine=SessionEngine(spark), partitions=2)
    world.send("a", "b")
    world.run(0)
    world.send("a", partition=1)
    world.run(1)
    query, back = tmp_path / "query", tmp_path / "back"
    assert main(["export", str(tmp_path / "checkpoint"), str(query)]) == 0
    world.send("a", "c", partition=1)

    session, rows = spark.newSession(), list[dict[str, Any]]()
    for name, value in {**state_settings(), **CONF}.items():
        session.conf.set(name, value)
    stream = session.readStream.format("kafka").option("kafka.bootstrap.servers", world.kafka.broker.address)
    read = stream.option("subscribe", world.kafka.topic).option("startingOffsets", "earliest").load()
    counted = read.selectExpr("cast(value as string) as id").groupBy("id").count().writeStream.outputMode("update")
    counted.foreachBatch(
        lambda frame, number: rows.extend(json.loads(text) for text in frame.toJSON().collect())
    ).option("checkpointLocation", str(query)).trigger(availableNow=True).start().awaitTermination()
    assert sorted(rows, key=str) == [{"id": "a", "count": 3}, {"id": "c", "count": 1}]

    assert main(["import", str(query), str(back / "checkpoint"), "--pipeline", "orders", "--sources", "orders"]) == 0
    world.root = back
    world.send("c")
    world.run(3)
    assert world.table() == {3: [{"id": "c", "count": 2}]}


KILLED = """
import os, signal
from pathlib import Path
from airflow_provider_microbatch.runtime import app

FLAG = Path({flag!r})

def transform(batch):
    run_query = app.run_query
    def killed_query(spark, job, result, write):
        def killed_write(frame):
            write(frame)
            if batch.id == 1 and not FLAG.exists():
                FLAG.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return run_query(spark, job, result, killed_write)
    app.run_query = killed_query
    return batch.sources["orders"].selectExpr("cast(value as string) as id").groupBy("id").count()
"""


def test_two_batches_go_through_operator_and_spark_submit_whoever_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By SASL and TLS from a connection; the driver of the second batch is killed between the stage and the state's
    commit, and it is cleared."""
    world = World(tmp_path, partitions=2)
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_SECURED", json.dumps({"conn_type": "kafka", "extra": world.broker.login}))
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "orders.py").write_text(KILLED.format(flag=str(tmp_path / "killed")))
    pipeline = Pipeline(
        "orders",
        checkpoint=str(tmp_path / "checkpoint"),
        sources={"orders": world.source(jars=[str(jar) for jar in connector()], conn_id="kafka_secured")},
        sink=FileSink(str(tmp_path / "lake"), format="json"),
        transform="orders.py:transform",
        stateful=True,
        output_mode="update",
        conf=CONF,
    )
    operator = MicroBatchOperator(
        task_id="micro_batch", pipeline=pipeline, conn_id="spark_default", conf={"spark.ui.enabled": "false"}
    )
    caplog.set_level("DEBUG")
    states = []
    for number, values in enumerate([["a", "b"], ["a", "a", "c"]]):
        world.broker.send(world.topic, values, partition=number % 2)
        if number == 1:
            with pytest.raises(SparkKilledError):
                operator.execute(context(bundle, number=number))
        states.append(operator.execute(context(bundle, number=number, try_number=2))["state"])
    states.append(operator.execute(context(bundle, number=1, clear_number=1))["state"])

    assert states == ["committed"] * 3
    seen = StatefulWorld(tmp_path)
    answer = seen.checkpoint.replays.newest_answer(BatchKey("live", 1))
    assert answer is not None
    assert answer["attempt"] == 3, "that of the clear is published"
    assert seen.table() == {
        0: [{"id": "a", "count": 1}, {"id": "b", "count": 1}],
        1: [{"id": "a", "count": 3}, {"id": "c", "count": 1}],
    }
    assert not list((tmp_path / "checkpoint" / "streaming").iterdir())
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in (PASSWORD, json.dumps(PASSWORD)[1:-1]):
        assert secret.encode() not in stored
        assert secret not in caplog.text
