"""A table of orders in a real MariaDB, found by a connection."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.sources import OpenSource, SourceContext
from airflow_provider_microbatch.sources.jdbc import JdbcSource
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.support.mariadb import MariaDb, server

_numbers = itertools.count()


@dataclass
class OrdersInMariaDb:
    """:param connection: to its database.
    :param at: the server that has it.
    """

    connection: Connection
    at: MariaDb

    @property
    def conn_id(self) -> str:
        return self.connection.conn_id

    @contextmanager
    def connect(self) -> Iterator[Any]:
        """A cursor of a session of its own, in a transaction that is committed at the end, or rolled back by an
        error."""
        with closing(self.at.connect(self.connection.schema)) as session, session.cursor() as cursor:
            cursor.execute("SET SESSION time_zone = '+00:00'")
            session.begin()
            yield cursor
            session.commit()

    def execute(self, statement: str, *values: Any) -> Any:
        """What one statement returns."""
        with self.connect() as cursor:
            cursor.execute(statement, values or None)
            return cursor.fetchall()

    def opened(self, folder: Path, table: str = "orders", **options: Any) -> OpenSource:
        """A source of a table, with ``late_seconds`` that nobody notices.

        :param folder: of its checkpoint.
        """
        store = PosixStore(folder)
        context = SourceContext(
            name="orders", log=store, state=store, clock_ms=lambda: 0, connect=lambda _: self.connection
        )
        asked = {"late_seconds": 0.000001, "database": "mariadb", **options}
        return JdbcSource(table, self.conn_id, **asked).open(context)

    def ids(self, source: OpenSource, start: str | None, end: str | None) -> list[int]:
        """What the planned predicates have now."""
        found = []
        for predicate in source.read(start, end).arguments["predicates"]:
            found += [id for (id,) in self.execute(f"SELECT id FROM orders WHERE {predicate}")]
        return sorted(found)


@contextmanager
def orders_in_mariadb(at: MariaDb | None = None) -> Iterator[OrdersInMariaDb]:
    """An empty table ``orders`` with the columns ``id``, ``note`` and ``updated_at``; connections are found by it.

    :param at: a server; None: that of all tests.
    """
    at = server() if at is None else at
    name = f"orders_{next(_numbers)}"
    made = Connection(conn_id="orders_db", conn_type="mysql", host="127.0.0.1", port=at.port, schema=name, login="root")
    with closing(at.connect()) as session, session.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    table = OrdersInMariaDb(made, at)
    table.execute(
        "CREATE TABLE orders (id bigint AUTO_INCREMENT PRIMARY KEY, note text, updated_at timestamp(6) NOT NULL "
        "DEFAULT current_timestamp(6) ON UPDATE current_timestamp(6), KEY (updated_at, id))"
    )
    before = list(connections._found_by)
    connections.find_by(lambda _: made)
    try:
        yield table
    finally:
        connections._found_by[:] = before
