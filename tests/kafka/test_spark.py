"""What Spark writes is what consumers get, in every form that a frame may have; and through a spark-submit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime import report
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.kafka_records import write
from airflow_provider_microbatch.sinks.kafka import KafkaSink
from airflow_provider_microbatch.sinks.kafka.opened import OpenKafka
from airflow_provider_microbatch.sources.file import FileSource
from tests.airflow_face.support import context
from tests.kafka.topic import World, of
from tests.sinks.stages import BATCH, EXPECTED
from tests.support import kafka
from tests.support.kafka import PASSWORD
from tests.support.kafka_stages import Found, make_ready
from tests.support.local_spark import local_spark

pytestmark = pytest.mark.spark

TRANSFORM = """
def transform(batch):
    return batch.sources["orders"].selectExpr("cast(id as string) as key", "to_json(struct(*)) as value")
"""


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with local_spark() as session:
        yield session


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World.make(tmp_path)


def staged(sink: OpenKafka, frame: Any) -> None:
    """As the runtime leaves it."""
    make_ready(sink)
    stage = sink.stage(BATCH, 1)
    listing = write(frame, stage.arguments)
    result = {"batchId": BATCH.key.id, "epoch": 1, "identity": BATCH.to_dict()}
    report.write_manifest(frame.sparkSession, stage.report, result, listing)


def published(world: World, frame: Any, **given: Any) -> list[Found]:
    sink = world.sink(**given)
    staged(sink, frame)
    sink.publish(EXPECTED, 1)
    return world.records()


def test_the_columns_of_sparks_own_writer_come_through(spark: Any, world: World) -> None:
    frame = spark.sql(
        """
        SELECT 'k' AS key, X'00FF' AS value, array(named_struct('key', 'kind', 'value', X'6F')) AS headers,
            smallint(1) AS partition
        UNION ALL SELECT null, null, null, null
        """
    ).coalesce(1)
    one, other = sorted(published(world, frame), key=lambda found: found.value is None)
    assert (one.key, one.value, one.headers["kind"], one.partition) == (b"k", b"\x00\xff", "o", 1)
    assert (other.key, other.value) == (None, None)


def test_texts_are_utf_8_whatever_is_in_them(spark: Any, world: World) -> None:
    texts = ["", "ü€😀", "a\0b", "line\nline", "\u2028"]
    frame = spark.createDataFrame([(text,) for text in texts], "value string").coalesce(1)
    assert sorted((one.value or b"").decode() for one in published(world, frame)) == sorted(texts)


def test_a_value_of_json_has_all_other_columns(spark: Any, world: World) -> None:
    frame = spark.sql(
        "SELECT 7 AS id, 'x' AS `a.b`, '7' AS key, timestamp'2026-01-01 00:00:00.000001Z' AS value, "
        "cast(null AS date) AS day"
    )
    (one,) = published(world, frame, value="json")
    assert one.key == b"7"
    found = json.loads(one.value or b"")
    assert datetime.fromisoformat(found.pop("value")) == datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    assert found == {"id": 7, "a.b": "x", "day": None}


def test_the_order_of_a_frame_is_the_order_of_a_partition(spark: Any, world: World) -> None:
    frame = spark.range(2000).selectExpr("'k' AS key", "cast(id as string) AS value").coalesce(1)
    found = published(world, frame)
    assert [(one.value or b"").decode() for one in found] == [str(number) for number in range(2000)]
    assert of(found, "microbatch-row") == [str(number) for number in range(2000)]


@pytest.mark.parametrize(
    ("sql", "match"),
    [
        ("SELECT 1 AS id", "it lacks the column 'value'; a record has no 'id'"),
        ("SELECT 1 AS value", "the column 'value' is of type int"),
        ("SELECT 'a' AS value, 1 AS key", "the column 'key' is of type int"),
        ("SELECT 'a' AS value, 1L AS partition", "the column 'partition' is of type bigint"),
        ("SELECT 'a' AS value, map('a', 'b') AS headers", "the column 'headers' is of type map"),
        ("SELECT 'a' AS value, 'b' AS value", "the column 'value' is there twice"),
        ("SELECT 'a' AS value, 'orders' AS topic", "a record has no 'topic'"),
    ],
)
def test_a_frame_that_is_no_records_is_refused_before_anything_is_written(
    spark: Any, tmp_path: Path, sql: str, match: str
) -> None:
    with pytest.raises(BatchFailure, match=match):
        write(spark.sql(sql), {"path": f"file://{tmp_path}/stage", "format": "parquet", "json": False})
    assert list(tmp_path.iterdir()) == []


def test_a_value_of_json_needs_a_column(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(BatchFailure, match="it has no column for the value"):
        write(spark.sql("SELECT 'a' AS key"), {"path": f"file://{tmp_path}/stage", "format": "parquet", "json": True})


def test_a_batch_and_its_dead_letters_go_through_operator_and_spark_submit(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, letters = world.folder, World.make(world.folder)
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_SECURED", json.dumps({"conn_type": "kafka", "extra": kafka.running().login}))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    (folder / "bundle").mkdir()
    (folder / "bundle" / "orders.py").write_text(TRANSFORM)
    (folder / "landing").mkdir()
    (folder / "landing" / "a.json").write_text('{"id": 0, "total": 1.5}\n{"id": "no number"}\n')
    pipeline = Pipeline(
        "orders",
        checkpoint=str(folder / "checkpoints" / "orders"),
        sources={"orders": FileSource(str(folder / "landing"), format="json", schema="id long, total double")},
        sink=KafkaSink(world.topic, conn_id="kafka_secured", stages=str(folder / "stages")),
        dead_letters=KafkaSink(
            letters.topic, conn_id="kafka_secured", stages=str(folder / "stages of letters"), value="json"
        ),
        transform="orders.py:transform",
    )
    operator = MicroBatchOperator(
        task_id="micro_batch", pipeline=pipeline, conn_id="spark_default", conf={"spark.ui.enabled": "false"}
    )
    caplog.set_level("DEBUG")
    summary = operator.execute(context(folder / "bundle"))
    assert (summary["state"], summary["rows_out"]) == ("committed", 1)
    (record,), (letter,) = world.records(), letters.records()
    assert (record.key, json.loads(record.value or b"")) == (b"0", {"id": 0, "total": 1.5})
    assert record.headers["microbatch-batch"] == "live/0"
    told = json.loads(letter.value or b"")
    assert (told["batch"], told["kind"], told["source"]) == ("live/0", "unparsed", "orders")
    assert json.loads(told["raw"]) == {"id": "no number"}
    stored = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    for secret in (PASSWORD, json.dumps(PASSWORD)[1:-1]):
        assert secret.encode() not in stored
        assert secret not in caplog.text
    assert list((folder / "stages").rglob("*.parquet")) == []
