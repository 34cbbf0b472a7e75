"""Sources of a table of orders in a real PostgreSQL, and the rows that their plans have."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources import OpenSource, SourceContext
from airflow_provider_microbatch.sources.jdbc import JdbcSource
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.support.orders_table import OrdersTable, orders_table

INSERT = "INSERT INTO orders (note) VALUES ('x')"


def opener(folder: Path, orders: OrdersTable, **always: Any) -> Callable[..., OpenSource]:
    """Opens sources of the table, with options of their own.

    :param folder: for what they keep.
    :param always: options that all of them have.
    """

    def opened(table: str = "orders", **options: Any) -> OpenSource:
        store = PosixStore(folder / "checkpoint")
        context = SourceContext(name="orders", log=store, state=store, clock_ms=lambda: 0)
        return JdbcSource(table, orders.conn_id, **{**always, **options}).open(context)

    return opened


@contextmanager
def timed_orders() -> Iterator[OrdersTable]:
    """A table that also has ``updated_at``, with an index."""
    with orders_table() as table:
        table.execute("ALTER TABLE orders ADD updated_at timestamptz DEFAULT clock_timestamp()")
        table.execute("CREATE INDEX ON orders (updated_at, id)")
        yield table


def check_lag_waits_for_nobody(source: OpenSource, orders: OrdersTable) -> None:
    """A lock of the table ends the question, and no row lies behind once it is gone."""
    orders.execute(INSERT)
    end = source.latest_offset(None)
    with orders.connect() as locks:
        locks.execute("LOCK TABLE orders")
        let_go = threading.Timer(30, locks.rollback)
        let_go.start()
        with pytest.raises(SourceError, match="statement timeout"):
            source.lag(end)
        let_go.cancel()
    assert source.lag(end).rows == 0


def ids(orders: OrdersTable, source: OpenSource, start: str | None, end: str | None, what: str = "id") -> list[Any]:
    """What the planned predicates have now."""
    found = []
    with orders.connect() as session:
        for predicate in source.read(start, end).arguments["predicates"]:
            found += [one for (one,) in session.execute(f"SELECT {what} FROM orders WHERE {predicate}")]
    return sorted(found)
