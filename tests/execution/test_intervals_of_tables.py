"""Runs of data intervals over a table of a real PostgreSQL that is read by time, to their commits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import IntervalError, NothingInIntervalError
from airflow_provider_microbatch.execution.intervals import batch_of
from airflow_provider_microbatch.execution.unread import find_unread
from airflow_provider_microbatch.sources.jdbc import JdbcSource
from tests.execution.intervals import DAY_MS, HOUR_MS, IntervalWorld, backfill_run, hour
from tests.execution.over_table import OverTable
from tests.sources.jdbc_world import timed_orders, write_anew
from tests.support.orders_table import OrdersTable


@pytest.fixture
def orders() -> Iterator[OrdersTable]:
    with timed_orders() as table:
        yield table


def insert(orders: OrdersTable, *hours: float) -> None:
    for at in hours:
        ms = DAY_MS + int(at * HOUR_MS)
        orders.execute("INSERT INTO orders (updated_at) VALUES (to_timestamp(%s / 1000.0))", ms)


class TableWorld(IntervalWorld):
    """The pipeline reads the table."""

    def __init__(self, root: Path, orders: OrdersTable, **pipeline: object) -> None:
        super().__init__(root, **pipeline)
        source = JdbcSource("orders", orders.conn_id, timestamp="updated_at", late_seconds=86_400)
        self.sources = {"orders": source}  # type: ignore[dict-item]
        self._orders = orders

    @property
    def engine(self) -> OverTable:
        return OverTable(self._orders.rows, self.root)

    def make(self, *hours: float) -> None:
        for number in hours:
            self.backfill(hour(number), int(number), self.engine)


def key(number: float) -> str:
    return str(batch_of(hour(number)))


def test_each_row_is_in_one_interval_and_late_ones_in_a_later_one(tmp_path: Path, orders: OrdersTable) -> None:
    world = TableWorld(tmp_path, orders, plan="interval", lookback=3600)
    with orders.connect() as slow:
        slow.execute("INSERT INTO orders (updated_at) VALUES (to_timestamp(%s))", [DAY_MS / 1000 + 1.5 * 3600])
        insert(orders, 1, 1.9, 2)
        world.make(1)
    world.make(2)
    assert world.rows() == {key(1): [2, 3], key(2): [1, 4]}
    assert find_unread(world.checkpoint) == []
    insert(orders, 0.5)
    (unread,) = find_unread(world.checkpoint)
    assert "1 rows of source 'orders'" in unread.message
    with pytest.raises(NothingInIntervalError):
        world.make(3)
    world.finish(world.work(hour(1)), backfill_run(1, clear_number=1), world.engine)
    assert world.rows() == {key(1): [2, 3], key(2): [1, 4]}


def test_live_batches_and_a_backfill_have_no_row_twice(tmp_path: Path, orders: OrdersTable) -> None:
    world = TableWorld(tmp_path, orders)
    insert(orders, 1, 2, 3)
    world.make(2)
    world.run(11, world.engine)
    insert(orders, 2.5)
    with pytest.raises(NothingInIntervalError, match="live/0 read it"):
        world.make(1)
    world.run(12, world.engine)
    assert world.rows() == {key(2): [2], "live/0": [1, 3], "live/1": [4]}


def test_an_overlap_is_replayed_as_it_was(tmp_path: Path, orders: OrdersTable) -> None:
    world = TableWorld(tmp_path, orders, on_overlap="replay")
    insert(orders, 1, 2)
    world.run(11, world.engine)
    insert(orders, 1.5)
    made = world.backfill(hour(1), 1, world.engine)
    assert len(made) == 2
    assert world.rows() == {"live/0": [1, 2], key(1): [3]}
    world.finish(world.work(hour(1)), backfill_run(1, clear_number=1), world.engine)
    assert world.rows() == {"live/0": [1, 2], key(1): [3]}


@pytest.mark.parametrize("plan", ["interval", "live"])
def test_a_new_run_of_an_interval_that_was_read_skips_no_rows_of_another_table(
    tmp_path: Path, orders: OrdersTable, plan: str
) -> None:
    """Its own lane has read the interval, of the table of before: a skip would be green, and the rows in no batch."""
    world = TableWorld(tmp_path, orders, plan=plan)
    insert(orders, 1, 2)
    world.make(1)
    with pytest.raises(NothingInIntervalError, match="has had its batch"):
        world.backfill(hour(1), 11, world.engine)
    write_anew(orders, "orders")
    for number in (12, 12):  # and its next try
        with pytest.raises(IntervalError, match=r"written anew.*checkpoint and a table of its own.*mark the task"):
            world.backfill(hour(1), number, world.engine)
    world.make(2)
    assert world.rows() == {key(1): [1], key(2): [2]}, "of which nobody had anything"


def test_where_its_table_is_away_a_new_run_of_an_interval_that_was_read_says_that_its_batch_is_there(
    tmp_path: Path, orders: OrdersTable
) -> None:
    world = TableWorld(tmp_path, orders)
    insert(orders, 1)
    world.make(1)
    orders.execute("ALTER TABLE orders RENAME TO away")
    with pytest.raises(IntervalError, match=r"has read the data interval.*\"orders\" does not exist.*mark the task"):
        world.backfill(hour(1), 11, world.engine)
    orders.execute("ALTER TABLE away RENAME TO orders")
    with pytest.raises(NothingInIntervalError, match="has had its batch"):
        world.backfill(hour(1), 11, world.engine)
