"""Sources of a table of orders in a real PostgreSQL, and the rows that their plans have."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.exceptions import SourceChangedError, SourceError
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


def check_not_gone_on_from(source: OpenSource, end: str | None, *, table: str, kept: str, where: str) -> None:
    """Check that a source refuses a position by other columns than it reads by, and that no command of the error has
    rows lost or doubled without leave.

    :param table: what matches the table's name.
    :param kept: what of the position one of the commands keeps.
    :param where: the case that this command is for.
    """
    said = rf"the position is one by .*, and {table} is read by .* set-offset"
    for look in (source.has_new, source.latest_offset, source.lag):
        with pytest.raises(SourceError, match=said):
            look(end)
    with pytest.raises(SourceChangedError, match="the position is one by"):
        source.read(None, end)
    assert "the position is one by" in str(source.not_replayable(None, end))
    with pytest.raises(SourceError) as raised:
        source.latest_offset(end)
    ways = re.findall(r"Where ([^`]*?): `microbatch set-offset [^`]*--offset '([^']*)'([^`]*)`", str(raised.value))
    assert {flags for _, _, flags in ways} == {" --allow-skip --allow-reread"}
    assert {source.is_after(offset, end) for _, offset, _ in ways} == {None}, "some of its rows were read"
    (said, offset, _), (begin, _, _) = ways
    assert "also those that were read" in begin
    assert (offset, where in said) == (kept, True)


@contextmanager
def timed_orders() -> Iterator[OrdersTable]:
    """A table that also has ``updated_at``, with an index."""
    with orders_table() as table:
        table.execute("ALTER TABLE orders ADD updated_at timestamptz DEFAULT clock_timestamp()")
        table.execute("CREATE INDEX ON orders (updated_at, id)")
        yield table


def in_two_partitions(orders: OrdersTable, numbers: Sequence[int], *, border: int, to: int | None = None) -> None:
    """Make the table anew, in the partitions ``lower`` and ``upper``.

    :param numbers: of its rows.
    :param border: the first number of the upper partition.
    :param to: the first number for which there is no partition; None: each number has one.
    """
    orders.execute("DROP TABLE orders CASCADE")
    orders.execute(
        "CREATE TABLE orders (id bigserial, note text, updated_at timestamptz DEFAULT clock_timestamp()) "
        "PARTITION BY RANGE (id)"
    )
    orders.execute("ALTER TABLE orders ALTER id SET NOT NULL")
    orders.execute(f"CREATE TABLE lower PARTITION OF orders FOR VALUES FROM (MINVALUE) TO ({border})")
    orders.execute(f"CREATE TABLE upper PARTITION OF orders FOR VALUES FROM ({border}) TO ({to or 'MAXVALUE'})")
    orders.execute("INSERT INTO orders (id) SELECT unnest(%s::int[])", list(numbers))


def write_anew(orders: OrdersTable, table: str) -> None:
    """Give the table other files, and its rows another transaction, as a restore of it does."""
    orders.execute(f"CREATE TABLE kept AS SELECT * FROM {table}")
    orders.execute(f"TRUNCATE {table}")
    orders.execute(f"INSERT INTO {table} SELECT * FROM kept")


def without(orders: OrdersTable, numbers: Sequence[int]) -> None:
    """Delete rows, and give the table other files, in which the others keep their transactions."""
    orders.execute("DELETE FROM orders WHERE id = ANY(%s)", list(numbers))
    with orders.connect(autocommit=True) as session:
        session.execute("VACUUM FULL orders")


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
