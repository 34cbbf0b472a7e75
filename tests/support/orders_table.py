"""A table of orders in a real PostgreSQL, found by a connection."""

from __future__ import annotations

import atexit
import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import psycopg
from sqlalchemy.engine import make_url

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.connections import Connection
from tests.support.postgres import Postgres, postgres

_numbers = itertools.count()


@cache
def server() -> Postgres:
    """One for all tests of this process; it ends with it."""
    stack = ExitStack()
    atexit.register(stack.close)
    # By which a log can be decoded: replication slots need that.
    return stack.enter_context(postgres(settings={"wal_level": "logical"}))


@dataclass
class OrdersTable:
    """:param connection: to its database."""

    connection: Connection

    @property
    def conn_id(self) -> str:
        return self.connection.conn_id

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """A session of its own."""
        to = self.connection
        return psycopg.connect(host=to.host, port=to.port, dbname=to.schema, user=to.login, **options)

    def execute(self, statement: str, *values: Any) -> None:
        with self.connect() as session:
            session.execute(statement, values)

    def rows(self, statement: str) -> list[Any]:
        """What one statement returns."""
        with self.connect() as session:
            return session.execute(statement).fetchall()


@contextmanager
def orders_table() -> Iterator[OrdersTable]:
    """An empty table ``orders`` with the columns ``id``, from a sequence, and ``note``; connections are found by it."""
    url = make_url(server().database(f"orders_{next(_numbers)}"))
    made = Connection(
        conn_id="orders_db",
        conn_type="postgres",
        host=url.host,
        port=url.port,
        schema=url.database,
        login=url.username,
    )
    table = OrdersTable(made)
    table.execute("CREATE TABLE orders (id bigserial PRIMARY KEY, note text)")
    before = list(connections._found_by)
    connections.find_by(lambda _: made)
    try:
        yield table
    finally:
        connections._found_by[:] = before
