"""Sessions of PostgreSQL, and names as its SQL has them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.jdbc.access import Access

KEEPALIVES: Mapping[str, Any] = {"keepalives_idle": 30}
"""Of libpq: a network forgets a session that says nothing for some minutes."""

LOCK_SECONDS = 60.0
"""The longest wait for somebody who changes a table."""

_CONNECT_SECONDS = 10
_BEGUN = (
    # Whatever the defaults of the database or the user are. A query that waits for a table which is written anew sees
    # it empty by a snapshot of before the wait: of this transaction where Spark has begun one, and of the next ones.
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET default_transaction_isolation = 'read committed'; "
    # With 0 or less a number of floating point is rounded.
    "SET extra_float_digits = 1; "
    "SELECT CASE current_setting('in_hot_standby', true) WHEN 'on' THEN ('Spark was led to a standby, which may lack "
    "rows that were planned. The connection must lead to the primary of ' || current_database())::int END"
)
"""What a session by which Spark reads rows begins with. It is another one than that of the plan, and may be led to
another server: on a standby that lags, rows of the plan would be missing, all of which are there for who counts them on
the primary. A balancer that leads statements leads the question where it leads the query: it may take one by
``pg_is_in_recovery()``, which is volatile, to the primary."""
_OF_TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey")


def tls(connection: Connection) -> dict[str, Any]:
    """The TLS settings in the connection's extra, under the names that libpq and the JDBC driver share. Paths must be
    valid both where Airflow runs and where Spark runs."""
    return {name: str(connection.extra[name]) for name in _OF_TLS if connection.extra.get(name)}


def quoted(name: str) -> str:
    """A name as SQL has it, with each of its parts quoted."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


KIN = (
    "(WITH RECURSIVE kin AS (SELECT %s::regclass::oid AS oid UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits AS i "
    "JOIN kin ON i.inhparent = kin.oid) SELECT oid FROM kin)"
)
"""The oids of a table and of all whose rows are its own too: partitions, and children by inheritance, which
``pg_partition_tree`` does not have."""


def quoted_column(name: str) -> str:
    """A column's name as SQL has it; a dot is part of the name."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as SQL has it, for a user to type."""
    return "'" + text.replace("'", "''") + "'"


def access(connection: Connection, *, table: str) -> Access:
    """How Spark reaches a table.

    :param table: as the user wrote it.
    """
    return Access(
        url=f"jdbc:postgresql://{connection.host}:{connection.port or 5432}/{connection.schema or ''}",
        driver="org.postgresql.Driver",
        options={"sessionInitStatement": _BEGUN, **tls(connection)},
        table=quoted(table),
    )


@contextmanager
def connected(connection: Connection, *, seconds: float | None = None) -> Iterator[Any]:
    """Open a session of PostgreSQL.

    :param seconds: the longest time that a statement may take, locks included; None for no limit.
    :raises SourceError: if the database cannot be asked, or is a standby.
    """
    try:
        import psycopg
    except ImportError as error:
        raise SourceError(
            "psycopg is not installed, which plans for tables of PostgreSQL. Run: pip install "
            "'airflow-provider-microbatch[postgres]'"
        ) from error
    try:
        with psycopg.connect(
            host=connection.host,
            port=connection.port or 5432,
            dbname=connection.schema,
            user=connection.login,
            password=connection.password,
            connect_timeout=_CONNECT_SECONDS,
            application_name="microbatch",
            client_encoding="utf8",  # a database of SQL_ASCII would give bytes in place of texts
            sslpassword=connection.extra.get("sslpassword"),
            **KEEPALIVES,
            **tls(connection),
        ) as opened:
            opened.autocommit = True
            (is_standby,) = opened.execute("SELECT pg_is_in_recovery()").fetchone() or (False,)
            if is_standby:  # it does not know of every transaction that runs, and their rows would not be waited for
                raise SourceError(
                    f"{connection.host} is a standby, which does not know what runs on the primary. Connection "
                    f"{connection.conn_id!r} must lead to the primary."
                )
            opened.autocommit = False
            opened.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            opened.read_only = True
            if seconds is not None:
                opened.execute(f"SET LOCAL statement_timeout = {math.ceil(1000 * seconds)}")
            yield opened
    except psycopg.Error as error:
        raise SourceError(f"PostgreSQL says: {' '.join(str(error).split())}") from error


def lock(opened: Any, table: str) -> None:
    """Have the table stay as it is to the end of the transaction, of which this is the first statement.

    A query takes its snapshot before it waits for the table's lock. Behind an ``ALTER TABLE`` that writes the table
    anew it would see none of its rows, in green: those of before are gone, and those of now are later than the
    snapshot.
    ``LOCK TABLE`` takes no snapshot, and no right but ``SELECT`` on all of it.

    :param table: as SQL has it.
    :raises SourceError: if it is neither a table nor a view, or this role has rights to columns alone.
    """
    import psycopg

    opened.execute(f"SET LOCAL lock_timeout = {math.ceil(1000 * LOCK_SECONDS)}")
    try:
        opened.execute(f"LOCK TABLE {table} IN ACCESS SHARE MODE")
    except psycopg.errors.InsufficientPrivilege as error:
        raise SourceError(
            f"{table} cannot be locked against changes of its form while it is read: {error.diag.message_primary}. "
            "That takes the right to the whole table, not to its columns alone: GRANT SELECT ON TABLE to this role."
        ) from error
    except psycopg.errors.WrongObjectType as error:
        raise SourceError(
            f"{table} is no table of this server, nor a view: of a foreign table and of a materialized view it does "
            "not know which transactions have yet to bring it rows. Read it where it is written; of a materialized "
            "view, the tables that it is made of."
        ) from error
