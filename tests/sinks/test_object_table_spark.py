"""A real Spark writes a table in a bucket by Hadoop's own s3a, with the credentials of a connection; others read it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime import report
from airflow_provider_microbatch.runtime.fence import Fence, FencedFailure
from airflow_provider_microbatch.runtime.layout import SCHEMA
from airflow_provider_microbatch.runtime.object_table import read_table
from airflow_provider_microbatch.runtime.write import write
from airflow_provider_microbatch.sinks import Compaction, SinkContext
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.file.objects import nothing
from airflow_provider_microbatch.sources.file import FileSource
from tests.airflow_face.support import context
from tests.environments import jars
from tests.sinks.stages import CHECKPOINT, NOTHING_KNOWN, expect
from tests.support import object_store
from tests.support.local_spark import local_spark
from tests.support.object_stages import write_stage
from tests.support.object_store_server import BUCKET

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SECRET = "the-secret-of-lake"


def s3a(url: str) -> dict[str, str]:
    """What a session of somebody else's knows of the bucket."""
    settings = {
        "endpoint": url,
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "endpoint.region": "us-east-1",
        "access.key": "AKIAREADER",
        "secret.key": "of-the-reader",
    }
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    # The last is what Amazon's Spark has: manifests say s3://.
    hive = {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:memory:symlinks;create=true",
        # A split of a symlink says that it has no bytes, and Spark passes over such.
        "spark.hadoopRDD.ignoreEmptySplits": "false",
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    }
    conf = {**s3a(object_store.endpoint()), **hive}
    with local_spark(cores=2, jars=jars("s3a-connector"), conf=conf) as session:
        yield session


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> Connection:
    """The only way to the bucket that a task knows."""
    extra = {"endpoint_url": object_store.endpoint(), "region_name": "us-east-1"}
    found = Connection(conn_id="lake", conn_type="aws", login="AKIALAKE", password=SECRET, extra=extra)
    told = {"conn_type": "aws", "login": found.login, "password": SECRET, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(told))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    for name in object_store.environment(""):
        monkeypatch.delenv(name)
    return found


def test_a_batch_of_spark_submit_goes_from_bucket_to_bucket_and_keeps_the_keys_nowhere(
    lake: Connection, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client, top = object_store.client(), f"{BUCKET}/{str(tmp_path).strip('/')}"
    for number in range(3):
        key = f"{str(tmp_path).strip('/')}/landing/day={number}/a b:{number}.json"
        client.put_object(Bucket=BUCKET, Key=key, Body=f'{{"id": {number}}}\n'.encode())
    (tmp_path / "bundle").mkdir()
    pipeline = Pipeline(
        "orders",
        checkpoint=f"s3://lake@{top}/checkpoint",
        sources={"orders": FileSource(f"s3://lake@{top}/landing", schema="id long", packages=[])},
        sink=FileSink(f"s3://lake@{top}/orders", packages=[]),
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
    rows = read_table(spark, f"s3a://{top}/orders").collect()
    found_of = sorted((row.id, row.day, row.lane, row.batch_id) for row in rows)
    assert found_of == [(number, number, "live", 0) for number in range(3)]
    stored = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for key in object_store.keys(tmp_path):
        found = client.get_object(Bucket=BUCKET, Key=f"{str(tmp_path).strip('/')}/{key}")
        stored.append(found["Body"].read())
    assert SECRET.encode() not in b"".join(stored)
    assert SECRET not in caplog.text


def test_a_stage_is_told_without_a_job_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """A job more would take a driver of one batch seconds."""
    address, client, top = f"s3a://{BUCKET}{tmp_path}/stage", object_store.client(), str(tmp_path).strip("/")
    frame = spark.range(4).selectExpr("id", "concat('a b:c%d/ä', id % 2) as part")
    arguments = {"path": address, "format": "json", "partition_by": ["part"]}
    spark.sparkContext.setJobGroup("the stage", "")
    listing = write(frame, arguments)
    client.put_object(Bucket=BUCKET, Key=f"{top}/stage/_hidden/part=0/file", Body=b"x")
    jobs = len(spark.sparkContext.statusTracker().getJobIdsForGroup("the stage"))
    report.write_schema(spark, address, frame.schema)
    report.write_manifest(spark, address, {"numOutputRows": 4}, listing)
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup("the stage")) == jobs == 1

    found = {
        key.removeprefix("stage/"): client.get_object(Bucket=BUCKET, Key=f"{top}/{key}")["Body"].read()
        for key in object_store.keys(tmp_path)
    }
    manifest = [json.loads(line) for line in found["_manifest/part-00000.txt"].decode().splitlines()]
    assert manifest[0] == {"result": {"numOutputRows": 4}}
    data = {path: len(body) for path, body in found.items() if path.startswith("part=")}
    assert {line["file"]: line["bytes"] for line in manifest[1:]} == data
    assert len(data) == 4
    (schema,) = (json.loads(body) for path, body in found.items() if path.startswith(f"{SCHEMA}/"))
    assert schema["columns"] == [["id", "bigint"], ["part", "string"]]
    with pytest.raises(Exception, match="FileAlreadyExists"):
        report.write_manifest(spark, address, {"numOutputRows": 0}, [])


def test_an_attempt_sees_its_fence_in_a_bucket(spark: SparkSession, tmp_path: Path) -> None:
    fence = Fence(spark, f"s3a://{BUCKET}{tmp_path}/fence")
    fence.check()
    object_store.client().put_object(Bucket=BUCKET, Key=f"{str(tmp_path).strip('/')}/fence", Body=b"x")
    with pytest.raises(FencedFailure, match="a later attempt"):
        fence.check()
    Fence(spark, f"s3a://no-such-bucket{tmp_path}/fence").check()  # nobody can tell: publish decides


@pytest.mark.parametrize("compacted", [False, True])
def test_readers_of_symlinks_see_what_is_published(spark: SparkSession, tmp_path: Path, compacted: bool) -> None:
    """By Hive's own input format, as Spark has it: it knows nothing of this package."""
    table = FileSink(f"{object_store.address(tmp_path)}/table", format="json", packages=[]).open(SinkContext())
    batches = [expect(BatchKey("live", number)) for number in range(4)]
    for epoch, batch in enumerate(batches):
        write_stage(table, epoch, batch=batch.identity, files=0 if batch.key.id == 2 else 2)
        table.publish(batch, epoch)
    table.withdraw(batches[1], 1)
    write_stage(table, 9, batch=batches[3].identity, rows=1)
    table.replace(batches[3], 9)
    write_stage(table, 10, batch=batches[3].identity)
    if compacted:
        asked = Compaction(checkpoint=CHECKPOINT, tables=NOTHING_KNOWN, left_alone=lambda found: None)
        assert table.compact(asked).batches == {BatchKey("live", 0)}
    spark.sql(
        "CREATE EXTERNAL TABLE orders (line string) PARTITIONED BY (lane string, batch_id int) STORED AS "
        "INPUTFORMAT 'org.apache.hadoop.hive.ql.io.SymlinkTextInputFormat' "
        "OUTPUTFORMAT 'org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat' "
        f"LOCATION 's3a://{BUCKET}{tmp_path}/table/_symlink_format_manifest'"
    )
    try:
        spark.sql("MSCK REPAIR TABLE orders")
        rows = spark.sql("SELECT lane, batch_id, get_json_object(line, '$.epoch') epoch FROM orders").collect()
    finally:
        spark.sql("DROP TABLE orders")
    seen = Counter((row.lane, row.batch_id, int(row.epoch)) for row in rows)
    assert seen == {("live", 0, 0): 6, ("live", 3, 9): 1}
    own = read_table(spark, f"s3a://{BUCKET}{tmp_path}/table")
    assert Counter((row.lane, row.batch_id, row.epoch) for row in own.collect()) == seen


@pytest.mark.parametrize("format", ["parquet", "orc", "json", "csv"])
def test_a_file_of_no_rows_is_one_to_spark(spark: SparkSession, tmp_path: Path, format: str) -> None:
    path = tmp_path / f"nothing.{format}"
    path.write_bytes(nothing.of_format(format))
    assert spark.read.format(format).schema("id long").load(str(path)).count() == 0


def test_a_table_without_rows_has_the_columns_that_it_is_told(spark: SparkSession, tmp_path: Path) -> None:
    table = FileSink(f"{object_store.address(tmp_path)}/table", format="json", packages=[]).open(SinkContext())
    write_stage(table, 1, files=0)
    table.publish(expect(), 1)
    path = f"s3a://{BUCKET}{tmp_path}/table"
    assert read_table(spark, path, schema="id long").columns == ["id", "lane", "batch_id"]
    with pytest.raises(ValueError, match="nothing is published"):
        read_table(spark, path)
