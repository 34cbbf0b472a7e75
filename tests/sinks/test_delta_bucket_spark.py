"""A real Spark writes a Delta table in a bucket by Hadoop's own s3a, with the credentials of a connection; delta-rs and
Delta's own Spark read it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from airflow_provider_microbatch.execution.engine import Code, Handle
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.runtime.secrets import give
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.upkeep.compaction import compact
from tests.airflow_face.support import context
from tests.environments import jars
from tests.execution.test_letters_replayed import LINES, Letters
from tests.runtime.jobs import EXPECTED, land, make_job
from tests.support import object_store
from tests.support.local_spark import DELTA, jars_of_lakes, local_spark
from tests.support.object_store_server import BUCKET
from tests.support.spark_engine import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SECRET = "the-secret-of-lake"
NOTES = ["plain", "50%/ü=?", None]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    settings = {
        "endpoint": object_store.endpoint(),
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "endpoint.region": "us-east-1",
        "access.key": "AKIAREADER",
        "secret.key": "of-the-reader",
    }
    conf = {**DELTA, **{f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}}
    with local_spark(cores=2, jars=jars_of_lakes(), conf=conf) as session:
        yield session


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only way to the bucket that a task knows."""
    extra = {"endpoint_url": object_store.endpoint(), "region_name": "us-east-1"}
    told = {"conn_type": "aws", "login": "AKIALAKE", "password": SECRET, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(told))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    for name in object_store.environment(""):
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("lake")
def test_a_batch_of_spark_submit_is_read_back_by_both_and_keeps_the_keys_nowhere(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client, prefix = object_store.client(), str(tmp_path).strip("/")
    for number, note in enumerate(NOTES):
        body = json.dumps({"id": number, "note": note}).encode()
        client.put_object(Bucket=BUCKET, Key=f"{prefix}/landing/{number}.json", Body=body)
    (tmp_path / "bundle").mkdir()
    landing = f"s3://lake@{BUCKET}/{prefix}/landing"
    pipeline = Pipeline(
        "orders",
        checkpoint=f"s3://lake@{BUCKET}/{prefix}/checkpoint",
        sources={"orders": FileSource(landing, schema="id long, note string", packages=[])},
        sink=DeltaSink(f"s3://lake@{BUCKET}/{prefix}/orders", partition_by=["note"], packages=[]),
    )
    operator = MicroBatchOperator(
        task_id="micro_batch",
        pipeline=pipeline,
        conn_id="spark_default",
        conf={"spark.ui.enabled": "false", "spark.jars": ",".join(map(str, jars("s3a-connector")))},
    )
    caplog.set_level("DEBUG")
    summary = operator.execute(context(tmp_path / "bundle"))
    assert (summary["state"], summary["rows_out"]) == ("committed", 3)
    options = {**object_store.environment(object_store.endpoint()), "aws_conditional_put": "etag"}
    table = DeltaTable(f"s3://{BUCKET}/{prefix}/orders", storage_options=options)
    expected = [(number, note, "live", 0) for number, note in enumerate(NOTES)]
    of_delta_rs = [
        (row["id"], row["note"], row["lane"], row["batch_id"]) for row in table.to_pyarrow_table().to_pylist()
    ]
    assert sorted(of_delta_rs) == expected
    of_spark = spark.read.format("delta").load(f"s3a://{BUCKET}/{prefix}/orders").collect()
    assert sorted((row.id, row.note, row.lane, row.batch_id) for row in of_spark) == expected
    stored = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for key in object_store.keys(tmp_path):
        stored.append(client.get_object(Bucket=BUCKET, Key=f"{prefix}/{key}")["Body"].read())
    assert SECRET.encode() not in b"".join(stored)
    assert SECRET not in caplog.text


class Handing(SparkEngine):
    """Hands secrets over beside the job, as engines do."""

    def start(self, handle: Handle, job: Job, code: Code) -> None:
        give(code.secrets)
        super().start(handle, job, code)


@pytest.mark.usefixtures("lake")
def test_letters_are_run_again_by_the_connection_that_they_were_written_by(spark: SparkSession, tmp_path: Path) -> None:
    """Also when later ones go to another table."""
    letters = DeltaSink(f"s3://lake@{BUCKET}{tmp_path}/letters", packages=["org.apache.hadoop:hadoop-aws:3"])
    world = Letters(tmp_path, spark, letters)
    world.engine = Handing(spark)
    for number, lines in enumerate((LINES[:2], LINES[2:])):
        world.land_lines(str(number), *lines)
        world.run(number, world.engine)
    assert world.ids() == [1]
    (report,) = compact(world.checkpoint, sinks=[letters.open(SinkContext())])
    assert report.done.files_after == 1
    world.options["dead_letters"] = FileSink(str(tmp_path / "letters of now"))
    replayed = world.replay(10)
    assert replayed is not None
    assert (replayed.rows_out, replayed.dead_letters, replayed.read) == (2, 1, {"dead_letters": {"batches": 2}})
    read = world.engine.jobs[-1].sources["dead_letters"]
    assert read.requires.packages == ("org.apache.hadoop:hadoop-aws:3",)
    assert SECRET not in str(world.engine.jobs)
    assert world.ids() == [1, 2, 3]


CHANGES = [
    {"id": 1, "name": "Ada", "at": "2999-01-02T00:00:00Z", "op": "U"},
    {"id": 1, "name": "late", "at": "2026-01-01T00:00:00Z", "op": "U"},
    {"id": 2, "name": "Bob", "at": "2026-01-03T00:00:00Z", "op": "U"},
    {"id": 2, "name": None, "at": "2026-01-03T00:00:00.000001Z", "op": "D"},
]


def test_changes_are_merged_and_spark_reads_their_newest(spark: SparkSession, tmp_path: Path) -> None:
    merge = Merge(keys=("id",), sequence_by=("at",), delete_when="op = 'D'", leave_out=("op",))
    sink = DeltaSink(f"{object_store.address(tmp_path)}/customers", merge=merge, packages=[])
    opened, schema = sink.open(SinkContext()), "id long, name string, at timestamp, op string"
    opened.begin(EXPECTED.identity, 1)
    run_job(spark, make_job(sink, None, [land(tmp_path / "landing", CHANGES)], schema=schema))
    opened.publish(EXPECTED, 1)
    read = spark.read.format("delta").load(f"s3a://{BUCKET}{tmp_path}/customers")
    assert read.columns == ["id", "name", "at", "lane", "batch_id"]
    assert [(row.id, row.name, row.at.year, row.batch_id) for row in read.collect()] == [(1, "Ada", 2999, 0)]
