"""Planned rows of a real PostgreSQL, read by Spark's JDBC source with the driver that the source requires."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.jdbc import read
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources import SourceContext
from airflow_provider_microbatch.sources.jdbc import DRIVER, JdbcSource
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.environments import jars
from tests.runtime.jobs import EXPECTED, make_job
from tests.support.local_spark import local_spark
from tests.support.orders_table import orders_table

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with local_spark(cores=2, jars=jars("postgres-driver")) as session:
        yield session


def test_exactly_the_planned_rows_are_read_by_partitions(spark: Any, tmp_path: Path) -> None:
    store = PosixStore(tmp_path / "checkpoint")
    with orders_table() as orders:
        context = SourceContext(name="orders", log=store, state=store, clock_ms=lambda: 0)
        source = JdbcSource("orders", orders.conn_id, partitions=2).open(context)
        with orders.connect() as slow:
            slow.execute("INSERT INTO orders (note) VALUES ('late')")
            orders.execute("INSERT INTO orders (note) SELECT 'n' || n FROM generate_series(2, 9) AS n")
            first = source.latest_offset(None)
        orders.execute("INSERT INTO orders (note) VALUES ('new')")
        planned = source.read(None, first)
        assert planned.requires.packages == (DRIVER,)
        sink = FileSink(str(tmp_path / "lake"), format="json")
        run_job(spark, make_job(sink, None, [], sources={"orders": planned}))
        manifest = sink.publish(EXPECTED, 1)
        assert manifest.result["numInputRows"] == {"orders": 8}
        assert sorted(row.id for row in spark.read.json(str(sink.root)).collect()) == list(range(2, 10))
        second = source.latest_offset(first)
        frame = read(spark, source.read(first, second).arguments).frame
        assert sorted(row.note for row in frame.collect()) == ["late", "new"]
        assert frame.rdd.getNumPartitions() == 2
        orders.execute("ALTER TABLE orders ADD amount numeric, ADD at timestamp")
        number = "12345678901234567890.1234567890123456789012345"
        orders.execute(f"UPDATE orders SET amount = {number}, at = 'infinity'")
        exact = JdbcSource("orders", orders.conn_id, texts=["amount", "at"]).open(context)
        row = read(spark, exact.read(first, second).arguments).frame.first()
        assert (row.amount, row.at) == (number, "infinity")
        orders.execute("ALTER TABLE orders DROP amount, DROP at")
        empty = read(spark, source.read(second, second).arguments).frame
        assert (empty.columns, empty.count()) == (["id", "note"], 0)


def test_rows_by_time_are_read_as_they_were_planned(spark: Any, tmp_path: Path) -> None:
    store = PosixStore(tmp_path / "checkpoint")
    with orders_table() as orders:
        orders.execute("ALTER TABLE orders ADD updated_at timestamptz DEFAULT clock_timestamp()")
        context = SourceContext(name="orders", log=store, state=store, clock_ms=lambda: 0)
        source = JdbcSource("orders", orders.conn_id, timestamp="updated_at", partitions=2).open(context)
        with orders.connect() as slow:
            slow.execute("INSERT INTO orders (note) VALUES ('late')")
            orders.execute("INSERT INTO orders (note) SELECT 'n' || n FROM generate_series(2, 9) AS n")
            first = source.latest_offset(None)
        orders.execute("INSERT INTO orders (note) VALUES ('new')")
        second = source.latest_offset(first)
        for start, end, ids in ((None, first, list(range(2, 10))), (first, second, [1, 10])):
            frame = read(spark, source.read(start, end).arguments).frame
            assert sorted(row.id for row in frame.collect()) == ids
            assert frame.rdd.getNumPartitions() == 2
