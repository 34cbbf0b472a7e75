"""Tables of databases, as the contract of sources knows them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from airflow_provider_microbatch.sources import Source
from airflow_provider_microbatch.sources.jdbc import JdbcSource
from tests.support.orders_in_mariadb import orders_in_mariadb
from tests.support.orders_table import orders_table


class Rows:
    """A table of PostgreSQL, at most two rows a batch.

    :param timestamp: the column that it is read by; None for its numbers.
    """

    keeps_a_log = False
    counts = True

    def __init__(self, root: Path, stack: ExitStack, *, timestamp: str | None = None) -> None:
        self._orders = stack.enter_context(orders_table())
        self._orders.execute("ALTER TABLE orders ADD updated_at timestamptz DEFAULT clock_timestamp()")
        self.source: Source = JdbcSource("orders", self._orders.conn_id, max_rows=2, timestamp=timestamp)

    def arrive(self) -> None:
        self._orders.execute("INSERT INTO orders (note) VALUES ('x')")

    def break_it(self) -> None:
        self._orders.execute("ALTER TABLE orders RENAME TO elsewhere")


class RowsInMariaDb:
    """A table of MariaDB, at most two rows a batch.

    :param timestamp: the column that it is read by; None for its numbers.
    """

    keeps_a_log = False
    counts = True

    def __init__(self, root: Path, stack: ExitStack, *, timestamp: str | None = None) -> None:
        self._orders = stack.enter_context(orders_in_mariadb())
        # By time a row is read when nothing can be committed behind it any more.
        late_seconds = 3600 if timestamp is None else 0.000001
        self.source: Source = JdbcSource(
            "orders",
            self._orders.conn_id,
            database="mariadb",
            max_rows=2,
            timestamp=timestamp,
            late_seconds=late_seconds,
        )

    def arrive(self) -> None:
        self._orders.execute("INSERT INTO orders (note) VALUES ('x')")

    def break_it(self) -> None:
        self._orders.execute("RENAME TABLE orders TO elsewhere")
