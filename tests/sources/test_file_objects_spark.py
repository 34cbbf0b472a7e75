"""A real Spark reads exactly the planned objects, by Hadoop's own s3a, with the credentials of a connection."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime import secrets
from airflow_provider_microbatch.runtime.files import read
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources import Late
from airflow_provider_microbatch.sources.file import FileSource
from tests.airflow_face.support import context
from tests.environments import jars
from tests.sources.support import World
from tests.support import object_store
from tests.support.local_spark import local_spark
from tests.support.object_store_server import BUCKET

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NAMES = ["a b", "a%20b.json", "a%.json", "12:30.json", "x*y.json", "é.json", "q?#&+.json", "br{a}.json", "k=1/a:b.json"]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_spark(cores=2, jars=jars("s3a-connector")) as session:
        yield session


def test_spark_reads_the_planned_objects_whatever_their_keys(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, client = object_store.endpoint(), object_store.client()
    lake = Connection(
        conn_id="lake",
        conn_type="aws",
        login="AKIALAKE",
        password="the-secret",
        extra={"endpoint_url": url, "region_name": "us-east-1"},
    )
    monkeypatch.setattr(connections, "_found_by", [{"lake": lake}.__getitem__])
    for name in object_store.environment(""):
        monkeypatch.delenv(name)
    world, prefix = World(tmp_path), f"{str(tmp_path).strip('/')}/landing"
    path = f"s3://lake@{BUCKET}/{prefix}"
    for number, name in enumerate(NAMES):
        client.put_object(Bucket=BUCKET, Key=f"{prefix}/{name}", Body=f'{{"id": {number}}}\n'.encode())
    end = world.open(path).latest_offset(None)
    assert not isinstance(end, Late)
    # What sorts beside a planned key and would be read by its glob, had nobody escaped it.
    for name in ("x1y.json", "bra.json", "late.json"):
        client.put_object(Bucket=BUCKET, Key=f"{prefix}/{name}", Body=b'{"id": 99}\n')
    source = world.open(path)
    plan = source.read(None, end)
    secrets.give({f"orders/{name}": value for name, value in source.secrets().items()})
    found = read(spark, json.loads(json.dumps(plan.arguments)))
    assert sorted(row.id for row in found.frame.collect()) == list(range(len(NAMES)))
    assert {row.k for row in found.frame.collect()} == {None, 1}
    assert "the-secret" not in found.frame._jdf.queryExecution().toString()


def test_a_batch_of_spark_submit_reads_a_bucket_beside_its_checkpoint_and_keeps_the_keys_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url, client = object_store.endpoint(), object_store.client()
    extra = {"endpoint_url": url, "region_name": "us-east-1"}
    lake = {"conn_type": "aws", "login": "AKIALAKE", "password": "the-secret-of-lake", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(lake))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    for name in object_store.environment(""):
        monkeypatch.delenv(name)
    top = f"{BUCKET}/{str(tmp_path).strip('/')}"
    for number in range(3):
        key = f"{str(tmp_path).strip('/')}/landing/day={number}/a b:{number}.json"
        client.put_object(Bucket=BUCKET, Key=key, Body=f'{{"id": {number}}}\n'.encode())
    (tmp_path / "bundle").mkdir()
    pipeline = Pipeline(
        "orders",
        checkpoint=f"s3://lake@{top}/checkpoint",
        sources={"orders": FileSource(f"s3://lake@{top}/landing", schema="id long", packages=[])},
        sink=FileSink(str(tmp_path / "lake"), format="json"),
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
    lines = [line for path in (tmp_path / "lake").rglob("part-*.json") for line in path.read_text().splitlines()]
    assert sorted(lines) == [f'{{"id":{number},"day":{number}}}' for number in range(3)]
    stored = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for key in object_store.keys(tmp_path):
        found = client.get_object(Bucket=BUCKET, Key=f"{str(tmp_path).strip('/')}/{key}")
        stored.append(found["Body"].read())
    assert b"the-secret-of-lake" not in b"".join(stored)
    assert "the-secret-of-lake" not in caplog.text
