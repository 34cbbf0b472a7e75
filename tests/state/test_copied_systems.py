"""Tables and streams of real systems under a pipeline that keeps state: each row is counted once, in its batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.runtime import secrets
from airflow_provider_microbatch.sources import Source
from airflow_provider_microbatch.sources.delta import DeltaSource
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.iceberg import IcebergSource
from airflow_provider_microbatch.sources.jdbc import JdbcSource
from airflow_provider_microbatch.sources.kinesis import KinesisSource
from tests.state.stateful import SessionEngine, StatefulWorld
from tests.support import kinesis, object_store
from tests.support.delta_orders import OrdersOfDelta
from tests.support.iceberg_orders import iceberg_orders
from tests.support.local_spark import DELTA, jars_of_lakes, local_spark
from tests.support.object_store_server import BUCKET
from tests.support.orders_table import orders_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

Made = tuple[Source, Callable[[], Any]]
"""A source, and what gives it two rows more, of an odd and of an even number."""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_spark(jars=jars_of_lakes(), conf=DELTA) as session:
        yield session


def of_changes(root: Path, stack: ExitStack) -> Made:
    orders = OrdersOfDelta(root / "orders", change_feed=True)
    return DeltaSource(str(root / "orders"), change_feed=True), lambda: orders.append(2)


def of_iceberg(root: Path, stack: ExitStack) -> Made:
    orders = stack.enter_context(iceberg_orders(root))
    return IcebergSource(orders.conn_id, "shop.orders"), lambda: orders.append(2)


def of_a_database(root: Path, stack: ExitStack) -> Made:
    table = stack.enter_context(orders_table())
    more = "INSERT INTO orders (note) VALUES ('a'), ('b')"
    return JdbcSource("orders", table.conn_id), lambda: table.execute(more)


def of_shards(root: Path, stack: ExitStack) -> Made:
    stream = kinesis.Stream(shards=2)
    _found(kinesis.connection, stack)
    source = KinesisSource(stream.name, conn_id=kinesis.CONN_ID, idle_seconds=0, discover_seconds=0)
    return source, lambda: stream.send(["0", "1"])


def of_a_bucket(root: Path, stack: ExitStack) -> Made:
    url, client, number = object_store.endpoint(), object_store.client(), itertools.count()
    extra = {"endpoint_url": url, "region_name": "us-east-1"}
    lake = Connection(conn_id="lake", conn_type="aws", login="AKIALAKE", password="the-secret", extra=extra)
    _found(lambda _: lake, stack)
    prefix = f"{str(root).strip('/')}/landing"

    def grow() -> None:
        for id in (next(number), next(number)):
            client.put_object(Bucket=BUCKET, Key=f"{prefix}/{id}.json", Body=f'{{"id": {id}}}\n'.encode())

    return FileSource(f"s3://lake@{BUCKET}/{prefix}", format="json", schema="id long", packages=[]), grow


def _found(by: connections.Connect, stack: ExitStack) -> None:
    stack.callback(connections._found_by.__setitem__, slice(None), list(connections._found_by))
    connections.find_by(by)


class SystemWorld(StatefulWorld):
    """A stateful pipeline over a source."""

    def __init__(self, root: Path, source: Source, engine: SessionEngine) -> None:
        kind = "halves_of_data" if isinstance(source, KinesisSource) else "halves"
        super().__init__(root, f"tests.state.transforms:{kind}", engine=engine)
        self.made = source
        self.clock = now_ms()  # a system has a clock of its own

    def source(self, name: str) -> Source:
        return self.made


@pytest.mark.parametrize(
    "make", [of_changes, of_iceberg, of_a_database, of_shards, of_a_bucket], ids=lambda make: make.__name__
)
def test_counts_go_on(tmp_path: Path, spark: SparkSession, make: Callable[[Path, ExitStack], Made]) -> None:
    with ExitStack() as stack:
        stack.enter_context(lifetime())
        stack.callback(secrets.give, {})
        source, grow = make(tmp_path, stack)
        world = SystemWorld(tmp_path, source, SessionEngine(spark))
        for number in range(2):
            grow()
            secrets.give(world.execution.planner.sources.secrets())  # as an engine hands them over
            world.run(number)

        assert world.table() == {number: [{"half": half, "count": number + 1} for half in (0, 1)] for number in (0, 1)}
