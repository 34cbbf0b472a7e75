"""Sources of a table of orders in a real PostgreSQL, and the rows that their plans have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.sources import OpenSource, SourceContext
from airflow_provider_microbatch.sources.jdbc import JdbcSource
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.support.orders_table import OrdersTable

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


def ids(orders: OrdersTable, source: OpenSource, start: str | None, end: str | None, what: str = "id") -> list[Any]:
    """What the planned predicates have now."""
    found = []
    with orders.connect() as session:
        for predicate in source.read(start, end).arguments["predicates"]:
            found += [one for (one,) in session.execute(f"SELECT {what} FROM orders WHERE {predicate}")]
    return sorted(found)
