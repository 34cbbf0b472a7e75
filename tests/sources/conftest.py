from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.sources.jdbc import JdbcSource
from tests.sources.jdbc_world import timed_orders
from tests.sources.lanes_of_a_table import InMariaDb, InPostgres, Lanes, Orders
from tests.sources.object_world import Bucket
from tests.sources.support import World
from tests.support.orders_in_mariadb import orders_in_mariadb


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def in_postgres() -> Iterator[InPostgres]:
    with timed_orders() as table:
        yield InPostgres(table)


@pytest.fixture
def in_mariadb() -> Iterator[InMariaDb]:
    with orders_in_mariadb() as table:
        yield InMariaDb(table)


@pytest.fixture(params=["in_postgres", pytest.param("in_mariadb", marks=pytest.mark.slow)])
def orders(request: pytest.FixtureRequest) -> Orders:
    found: Orders = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def lanes_of(tmp_path: Path) -> Callable[..., Lanes]:
    def lanes_of(orders: Orders, table: str = "orders", **options: Any) -> Lanes:
        asked = {"timestamp": "updated_at", **orders.options, **options}
        return Lanes(tmp_path / "checkpoint", orders, JdbcSource(table, orders.connection.conn_id, **asked))

    return lanes_of


@pytest.fixture
def lanes(lanes_of: Callable[..., Lanes], orders: Orders) -> Lanes:
    return lanes_of(orders)


@pytest.fixture
def bucket(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    bucket = Bucket(world, tmp_path)
    bucket.proxy.start()
    monkeypatch.setattr(connections, "_found_by", [bucket.connection])
    yield bucket
    bucket.proxy.stop()
