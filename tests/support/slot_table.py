"""A table of orders in a real PostgreSQL whose changes come by a slot of its own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.runtime.job import Read
from airflow_provider_microbatch.runtime.slot import rows_of
from airflow_provider_microbatch.sources import OpenSource, Source, SourceContext
from airflow_provider_microbatch.sources.slot import SlotSource
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.support.orders_table import OrdersTable, orders_table

_numbers = itertools.count()
PUBLICATION = "Orders' changes"
_OF_SLOT = "FROM pg_replication_slots WHERE slot_name = %s"


@dataclass(frozen=True, kw_only=True)
class SlotTable:
    """:param orders: the table, with ``id`` and ``note``.
    :param slot: name of the slot.
    """

    orders: OrdersTable
    slot: str

    def execute(self, *statements: str) -> None:
        """One transaction."""
        with self.orders.connect() as session:
            for statement in statements:
                session.execute(statement.encode())

    def one(self, question: str, *values: Any) -> Any:
        """The only value of the answer's only row."""
        with self.orders.connect(autocommit=True) as session:
            found = session.execute(question.encode(), values).fetchone()
        assert found is not None
        return found[0]

    def make_slot(self) -> None:
        self.one("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')::text", self.slot)

    def drop_slot(self) -> None:
        """Whether or not it is there."""
        self.one(f"SELECT count(pg_drop_replication_slot(slot_name)) {_OF_SLOT}", self.slot)

    def moved_to(self) -> str:
        """How far the slot has moved on."""
        return str(self.one(f"SELECT confirmed_flush_lsn::text {_OF_SLOT}", self.slot))

    def source(self, **options: Any) -> SlotSource:
        given = {"publication": PUBLICATION, "schema": "id long, note string", **options}
        return SlotSource(self.slot, "orders", self.orders.conn_id, **given)

    def opener(self, folder: Path) -> Callable[..., OpenSource]:
        """Opens sources of the slot, with options of the definition and, by ``context``, surroundings of their own."""

        def opened(context: dict[str, Any] | None = None, **options: Any) -> OpenSource:
            store = PosixStore(folder / "checkpoint")
            given: dict[str, Any] = {"name": "orders", "log": store, "state": store, "clock_ms": lambda: 0}
            return self.source(**options).open(SourceContext(**(given | (context or {}))))

        return opened


@contextmanager
def slot_table() -> Iterator[SlotTable]:
    """The table is empty, and the slot has nothing."""
    with orders_table() as orders:
        found = SlotTable(orders=orders, slot=f"orders_{os.getpid()}_{next(_numbers)}")
        with orders.connect(autocommit=True) as session:
            # Only what is on disk is decoded.
            session.execute(f"ALTER DATABASE {orders.connection.schema} SET synchronous_commit = on".encode())
        found.execute(
            "ALTER TABLE orders REPLICA IDENTITY FULL", f'CREATE PUBLICATION "{PUBLICATION}" FOR TABLE orders'
        )
        found.make_slot()
        try:
            yield found
        finally:
            found.drop_slot()


class Changes:
    """For the contract suite: a change each, at most two a batch."""

    keeps_a_log = False
    counts = True

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self._table = stack.enter_context(slot_table())
        self.source: Source = self._table.source(max_changes=2)

    def arrive(self) -> None:
        self._table.execute("INSERT INTO orders (note) VALUES ('x')")

    def break_it(self) -> None:
        self._table.drop_slot()

    def rows(self, read: Read) -> list[int]:
        return [row[0] for row in rows_of(read.arguments, "")]
