"""Questions to PostgreSQL about the numbers of a table, each answered in one snapshot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.jdbc.cluster import Cluster, cluster_now
from airflow_provider_microbatch.sources.jdbc.offset import Table
from airflow_provider_microbatch.sources.jdbc.transactions import NEXT, check_told, running_now, unseen

_CONNECT_SECONDS = 10
WHOLE = (20, 21, 23)  # oids of int8, int2, int4
_NUMERIC = (1700, 1231)  # oids of numeric and of its array
_SPARK_DIGITS = 38

_OF_TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey")


def tls(connection: Connection) -> dict[str, Any]:
    """The TLS settings in the connection's extra, under the names that libpq and the JDBC driver share. Paths must be
    valid both where Airflow runs and where Spark runs."""
    return {name: str(connection.extra[name]) for name in _OF_TLS if connection.extra.get(name)}


def quoted(name: str) -> str:
    """A name as SQL has it, with each of its parts quoted."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


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
            sslpassword=connection.extra.get("sslpassword"),
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


@contextmanager
def snapshot(
    connection: Connection, *, table: str, column: str, plans: bool = False, seconds: float | None = None
) -> Iterator[Snapshot]:
    """Open the table as it is at one moment.

    :param plans: also find the transactions that run.
    :param seconds: see :func:`connected`. Not with ``plans``.
    :raises SourceError: if the database cannot be asked.
    """
    with connected(connection, seconds=seconds) as opened:
        ran = running_now(opened) if plans else (0, [])
        yield Snapshot(opened, table=table, column=column, ran=ran)


class Snapshot:
    """:param opened: a connection in a transaction of one snapshot.
    :param table: as the user wrote it.
    :param column: as the user wrote it.
    :param ran: the transactions that ran before the snapshot, as :func:`running_now` returns them.
    """

    def __init__(self, opened: Any, *, table: str, column: str, ran: tuple[int, list[int]] = (0, [])) -> None:
        self._opened, self._ran = opened, ran
        self._table, self._column = quoted(table), quoted_column(column)
        self._bare_column = column

    def check(self) -> None:
        """:raises SourceError: if the column does not have whole numbers."""
        cursor = self._opened.execute(f"SELECT {self._column} FROM {self._table} LIMIT 0")
        if cursor.description[0].type_code not in WHOLE:
            raise SourceError(f"column {self._column} of {self._table} is not of whole numbers")

    def inexact(self, *, texts: Sequence[str]) -> list[str]:
        """See :func:`inexact`."""
        return inexact(self._opened, self._table, texts=texts)

    def identity(self) -> Table:
        """The identity of the table. VACUUM FULL, CLUSTER, a plain TRUNCATE and ``setval`` do not change it."""
        found = self._row(
            "SELECT n.nspname || '.' || c.relname, c.oid::bigint, (SELECT max(s.relfilenode::bigint) "
            "FROM pg_catalog.pg_depend AS d JOIN pg_catalog.pg_class AS s ON s.oid = d.objid AND s.relkind = 'S' "
            "JOIN pg_catalog.pg_attribute AS a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid "
            "WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.refclassid = 'pg_catalog.pg_class'::regclass "
            "AND d.refobjid = c.oid AND d.deptype IN ('a', 'i') AND a.attname = %s) FROM pg_catalog.pg_class AS c "
            "JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = %s::regclass",
            self._bare_column,
            self._table,
        )
        if found is None:  # the name is resolved now, and everything else as of the snapshot
            raise SourceError(f"{self._table} is being made again at this moment: look again")
        name, oid, sequence = found
        file = None if sequence is None else int(sequence)
        return Table(name=name, oid=int(oid), sequence=file, cluster=self._cluster)

    @cached_property
    def _cluster(self) -> Cluster:
        return cluster_now(self._opened)

    def moment(self) -> tuple[int, int, int]:
        """The time, milliseconds since the epoch; the lowest id of a running transaction; and the first id that was not
        assigned."""
        now_ms, xmin, xmax = self._row(
            "SELECT (1000 * extract(epoch FROM clock_timestamp()))::bigint, pg_snapshot_xmin(s)::text, "
            "pg_snapshot_xmax(s)::text FROM pg_current_snapshot() AS s"
        )
        return int(now_ms), int(xmin), int(xmax)

    def any_after(self, number: int) -> bool:
        """Whether there is a row behind ``number``."""
        (found,) = self._row(f"SELECT EXISTS (SELECT FROM {self._table} WHERE {self._column} > %s)", number)
        return bool(found)

    def last(self, after: int, most: int | None) -> int:
        """The highest number behind ``after``, of the first ``most`` rows if there is a limit; ``after`` if there is
        none."""
        (found,) = self._row(
            f"SELECT max(n) FROM (SELECT {self._column} AS n FROM {self._table} WHERE {self._column} > %s "
            f"ORDER BY {self._column} LIMIT %s) AS first",
            after,
            most,
        )
        return after if found is None else int(found)

    def highest(self, first: int) -> int | None:
        """The highest number of all rows from ``first`` on; None if there is none."""
        (found,) = self._row(f"SELECT max({self._column}) FROM {self._table} WHERE {self._column} >= %s", first)
        return None if found is None else int(found)

    def given(self) -> int | None:
        """The number that the column's sequence assigned last; None if the column has no sequence of its own, the
        sequence has assigned none yet, or this role may not look at it."""
        (found,) = self._row(
            "SELECT (SELECT last_value FROM pg_catalog.pg_sequences WHERE "
            "quote_ident(schemaname) || '.' || quote_ident(sequencename) = pg_get_serial_sequence(%s, %s))",
            self._table,
            self._bare_column,
        )
        return None if found is None else int(found)

    def missing(self, first: int, last: int) -> list[tuple[int, int]]:
        """First and last of the missing numbers from ``first`` to ``last``, both included."""
        rows = self._opened.execute(
            f"SELECT before + 1, n - 1 FROM (SELECT n, lag(n, 1, %s::bigint) OVER (ORDER BY n) AS before FROM ("
            f"SELECT {self._column}::bigint AS n FROM {self._table} WHERE {self._column} BETWEEN %s AND %s "
            "UNION ALL SELECT %s::bigint) AS present) AS pairs WHERE n - before > 1 ORDER BY n",
            (first - 1, first, last, last + 1),
        )
        return [(int(one), int(other)) for one, other in rows]

    def filled(self, spans: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        """The spans that contain a row."""
        rows = self._opened.execute(
            "SELECT one, other FROM unnest(%s::bigint[], %s::bigint[]) AS span(one, other) WHERE EXISTS ("
            f"SELECT FROM {self._table} WHERE {self._column} BETWEEN one AND other)",
            ([one for one, _ in spans], [other for _, other in spans]),
        )
        return {(int(one), int(other)) for one, other in rows}

    def count(self, spans: Sequence[tuple[int, int]], *, most: int | None = None) -> int:
        """Number of rows in the spans, or ``most`` if there are more."""
        (found,) = self._row(
            f"SELECT count(*) FROM (SELECT FROM {self._table} JOIN unnest(%s::bigint[], %s::bigint[]) "
            f"AS span(one, other) ON {self._column} BETWEEN one AND other LIMIT %s) AS found",
            [one for one, _ in spans],
            [other for _, other in spans],
            most,
        )
        return int(found)

    def any(self, condition: str) -> bool:
        """Whether the condition holds for a row."""
        (found,) = self._opened.execute(f"SELECT EXISTS (SELECT FROM {self._table} WHERE {condition})").fetchone()
        return bool(found)

    def count_of(self, condition: str, *, most: int) -> int:
        """Number of rows for which the condition holds, or ``most`` if there are more."""
        (found,) = self._opened.execute(
            f"SELECT count(*) FROM (SELECT FROM {self._table} WHERE {condition} LIMIT {most}) AS found"
        ).fetchone()
        return int(found)

    def rows(self, conditions: Sequence[str]) -> tuple[int, str]:
        """Number of rows for which one of the conditions holds, and a digest of their numbers."""
        found = self._opened.execute(
            f"SELECT count(*), coalesce(sum(hashint8extended({self._column}::bigint, 0)), 0)::text FROM {self._table} "
            f"WHERE {' OR '.join(f'({one})' for one in conditions) or 'false'}"
        ).fetchone()
        return int(found[0]), str(found[1])

    def check_told(self) -> None:
        """See :func:`~airflow_provider_microbatch.sources.jdbc.transactions.check_told`."""
        check_told(self._opened, self._table)

    def file(self) -> int:
        """The sum of the file numbers of the table and its partitions."""
        (found,) = self._row(
            "SELECT sum(p.relfilenode::bigint)::bigint FROM pg_catalog.pg_class AS p WHERE p.oid = %s::regclass OR "
            "p.oid IN (SELECT relid FROM pg_partition_tree(%s::regclass))",
            self._table,
            self._table,
        )
        return int(found)

    def below(self) -> int:
        """The first transaction id that was not assigned."""
        (found,) = self._row(f"SELECT {NEXT}")
        return int(found)

    def unseen(self, first: int, last: int, below: int) -> list[int]:
        """Transactions that may still commit numbers from ``first`` to ``last``, both included."""
        rows = f"FROM {self._table} WHERE {self._column} BETWEEN {first} AND {last}"
        return unseen(self._opened, self._ran, below, rows=rows)

    def _row(self, statement: str, *values: Any) -> Any:
        return self._opened.execute(statement, values).fetchone()


def quoted_column(name: str) -> str:
    """A column's name as SQL has it; a dot is part of the name."""
    return '"' + name.replace('"', '""') + '"'


def inexact(opened: Any, table: str, *, texts: Sequence[str]) -> list[str]:
    """Columns whose numbers Spark would silently cut or turn into null: ``numeric`` without a precision, or with more
    digits than Spark's decimals have.

    :param opened: a session.
    :param table: as SQL has it.
    :param texts: columns that are read as texts.
    """
    result = opened.execute(f"SELECT * FROM {table} LIMIT 0").pgresult
    found = []
    for at in range(result.nfields):
        name, kind, modifier = result.fname(at).decode(), result.ftype(at), result.fmod(at)
        if kind not in _NUMERIC or name in texts:
            continue
        # PostgreSQL's numeric_typmod: precision above, eleven bits of a signed scale below.
        precision, scale = (modifier - 4) >> 16 & 0xFFFF, ((modifier - 4 & 0x7FF) ^ 1024) - 1024
        if modifier < 4 or precision > _SPARK_DIGITS or not 0 <= scale <= precision:
            found.append(name)
    return found
