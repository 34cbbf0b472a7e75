"""A real Spark reads exactly the planned objects, by Hadoop's own s3a, with the credentials of a connection."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.runtime import secrets
from airflow_provider_microbatch.runtime.files import read
from airflow_provider_microbatch.sources import Late
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
