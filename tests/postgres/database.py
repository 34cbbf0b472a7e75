"""A database for sinks: the session's server, a schema for each test, and the connection that leads there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.postgres import PostgresSink
from airflow_provider_microbatch.sinks.postgres.open import OpenPostgres
from tests.support.postgres import postgres

CONN_ID = "warehouse"
PORT = "MICROBATCH_TEST_POSTGRES"
"""Where the server of this process, and of those that it starts, listens."""
PASSWORD = "not-to-be-told"


@contextmanager
def server() -> Iterator[None]:
    """Whoever asks for a connection within it, in this process or in one that it starts, is led to one new server."""
    with postgres() as started:
        os.environ[PORT] = str(started.port)
        try:
            yield
        finally:
            del os.environ[PORT]


def connection_of(conn_id: str, *, port: int | None = None, extra: Mapping[str, Any] | None = None) -> Connection:
    """As Airflow would have it."""
    return Connection(
        conn_id=conn_id,
        conn_type="postgres",
        host="127.0.0.1",
        port=port or int(os.environ[PORT]),
        schema="postgres",
        login="postgres",
        password=PASSWORD,
        extra=extra or {},
    )


def connect(*, dbname: str = "postgres", **given: Any) -> psycopg.Connection[Any]:
    """A client of the test's own."""
    return psycopg.connect(
        f"host=127.0.0.1 port={os.environ[PORT]} user=postgres", dbname=dbname, autocommit=True, **given
    )


def schema_of(folder: Path) -> str:
    """A schema of the folder's own; its name has what names may have."""
    name = f'World "{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}" 100%'
    with connect() as connection:
        connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{name.replace(chr(34), chr(34) * 2)}"'.encode())
    return name


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def rows(table: str, what: str = "*", order: str = "1") -> list[tuple[Any, ...]]:
    """What a reader finds."""
    with connect() as connection:
        return connection.execute(f"SELECT {what} FROM {table} ORDER BY {order}".encode()).fetchall()


def sink_in(folder: Path, *, port: int | None = None, table: str = "Orders", **given: Any) -> OpenPostgres:
    """A sink whose table and stages are the folder's own.

    :param port: where the connection leads instead of to the server.
    """
    definition = PostgresSink(CONN_ID, table_in(folder, table), stages=str(folder / "stages"), **given)
    return definition.open(SinkContext(connect=lambda conn_id: connection_of(conn_id, port=port)))


def table_in(folder: Path, table: str = "Orders") -> str:
    """As it stands in a statement, and in a definition."""
    return f"{quoted(schema_of(folder))}.{quoted(table)}"


def tables_of_ours(folder: Path) -> set[str]:
    """What stage tables and replaced rows lie in the folder's schema."""
    with connect() as connection:
        found = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename ~ '^microbatch_(stage|kept)_'",
            [schema_of(folder)],
        )
        return {str(name).split("_")[1] for (name,) in found}
