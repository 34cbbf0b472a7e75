"""Questions to PostgreSQL about the numbers of a table, each answered in one snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.jdbc.offset import Table
from airflow_provider_microbatch.sources.jdbc.relation import FILES, WHOLE, Relation
from airflow_provider_microbatch.sources.jdbc.session import connected, lock, quoted, quoted_column
from airflow_provider_microbatch.sources.jdbc.transactions import Ended, running_now

_FIRST, _LAST = "microbatch_first", "microbatch_last"
"""Beside the table's own columns, which may have any plainer name."""


@contextmanager
def snapshot(
    connection: Connection, *, table: str, column: str, ended: Ended | None = None, seconds: float | None = None
) -> Iterator[Snapshot]:
    """Open the table as it is at one moment.

    :param ended: what had ended before, to find the transactions that run; None if they need not be known.
    :param seconds: see :func:`connected`. Not with ``ended``.
    :raises SourceError: if the database cannot be asked.
    """
    with connected(connection, seconds=seconds) as opened:
        ran = (0, []) if ended is None else running_now(opened, ended)
        lock(opened, quoted(table))
        yield Snapshot(opened, table=table, column=column, ran=ran)


class Snapshot(Relation):
    """The table as its rows are planned by number.

    :param column: as the user wrote it. The rest as :class:`Relation` has it.
    """

    def __init__(self, opened: Any, *, table: str, column: str, ran: tuple[int, list[int]] = (0, [])) -> None:
        super().__init__(opened, table=table, ran=ran)
        self._column, self._bare_column = quoted_column(column), column

    def look_again(self) -> None:
        """Be the table as it is at a later moment, of which it is known which transactions run."""
        self._opened.rollback()
        self._ran = running_now(self._opened, Ended())
        lock(self._opened, self._table)

    def check(self) -> None:
        """:raises SourceError: if the column does not have whole numbers, or rows are written elsewhere."""
        (kind,), _ = self._described([self._column])
        if kind not in WHOLE:
            raise SourceError(f"column {self._column} of {self._table} is not of whole numbers")
        self.check_written_here()

    def identity(self) -> Table:
        """The identity of the table. VACUUM FULL, CLUSTER, a plain TRUNCATE and ``setval`` do not change it."""
        _, numbers = self._described([self._column])
        name, oid, sequence = self._made(
            "(SELECT max(s.relfilenode::bigint) "
            "FROM pg_catalog.pg_depend AS d JOIN pg_catalog.pg_class AS s ON s.oid = d.objid AND s.relkind = 'S' "
            "JOIN pg_catalog.pg_attribute AS a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid "
            "WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.refclassid = 'pg_catalog.pg_class'::regclass "
            "AND d.refobjid = c.oid AND d.deptype IN ('a', 'i') AND a.attname = %s)",
            self._bare_column,
        )
        file, by = None if sequence is None else int(sequence), self._bare_column
        return Table(name=name, oid=int(oid), sequence=file, cluster=self._cluster, by=by, numbers=numbers)

    def moment(self) -> tuple[int, int]:
        """The time, milliseconds since the epoch; and the lowest id of a running transaction."""
        now_ms, xmin = self._row(
            "SELECT (1000 * extract(epoch FROM clock_timestamp()))::bigint, "
            "pg_snapshot_xmin(pg_current_snapshot())::text"
        )
        return int(now_ms), int(xmin)

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
        """The number that the column's sequence assigned last, or the one before that which ``setval`` says to assign
        next; None if the column has no sequence of its own, the sequence has assigned none yet, or this role may not
        look at it."""
        name, start, found, may_look = self._row(
            "SELECT own.name, s.start_value, s.last_value, has_sequence_privilege(own.name, 'SELECT') "
            "FROM pg_get_serial_sequence(%s, %s) AS own (name) LEFT JOIN pg_catalog.pg_sequences AS s "
            "ON quote_ident(s.schemaname) || '.' || quote_ident(s.sequencename) = own.name",
            self._table,
            self._bare_column,
        )
        if found is None and may_look:  # the view has no number of a sequence that is yet to assign one
            following, is_called = self._row(f"SELECT last_value, is_called FROM {name}")
            return None if is_called or following == start else int(following) - 1
        return None if found is None else int(found)

    def missing(self, first: int, last: int, *, most: int | None = None, among: str = "true") -> list[tuple[int, int]]:
        """First and last of the missing numbers from ``first`` to ``last``, both included; of the first ``most`` gaps
        if there is a limit.

        :param among: an SQL condition for the rows whose numbers are not missing.
        """
        rows = self._opened.execute(
            f"SELECT before + 1, n - 1 FROM (SELECT n, lag(n, 1, %s::bigint) OVER (ORDER BY n) AS before FROM ("
            f"SELECT {self._column}::bigint AS n FROM {self._table} WHERE {self._column} BETWEEN %s AND %s AND {among} "
            "UNION ALL SELECT %s::bigint) AS present) AS pairs WHERE n - before > 1 ORDER BY n LIMIT %s::bigint",
            (first - 1, first, last, last + 1, most),
        )
        return [(int(one), int(other)) for one, other in rows]

    def filled(self, spans: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        """The spans that contain a row."""
        rows = self._opened.execute(
            f"SELECT {_FIRST}, {_LAST} FROM unnest(%s::bigint[], %s::bigint[]) AS span({_FIRST}, {_LAST}) WHERE EXISTS "
            f"(SELECT FROM {self._table} WHERE {self._column} BETWEEN {_FIRST} AND {_LAST})",
            ([one for one, _ in spans], [other for _, other in spans]),
        )
        return {(int(one), int(other)) for one, other in rows}

    def count(self, spans: Sequence[tuple[int, int]], *, most: int | None = None) -> int:
        """Number of rows in the spans, or ``most`` if there are more."""
        (found,) = self._row(
            f"SELECT count(*) FROM (SELECT FROM {self._table} JOIN unnest(%s::bigint[], %s::bigint[]) AS "
            f"microbatch_span({_FIRST}, {_LAST}) ON {self._column} BETWEEN {_FIRST} AND {_LAST} LIMIT %s) AS found",
            [one for one, _ in spans],
            [other for _, other in spans],
            most,
        )
        return int(found)

    def rows(self, conditions: Sequence[str]) -> tuple[int, str]:
        """Number of rows for which one of the conditions holds, and a digest of their numbers."""
        found = self._opened.execute(
            f"SELECT count(*), coalesce(sum(hashint8extended({self._column}::bigint, 0)), 0)::text FROM {self._table} "
            f"WHERE {' OR '.join(f'({one})' for one in conditions) or 'false'}"
        ).fetchone()
        return int(found[0]), str(found[1])

    def file(self) -> int:
        """See :data:`FILES`."""
        (found,) = self._row(f"SELECT {FILES}", self._table)
        return int(found)

    def unseen(self, first: int, last: int, below: int) -> list[int]:
        """Transactions that may still commit numbers from ``first`` to ``last``, both included."""
        rows = f"FROM {self._table} WHERE {self._column} BETWEEN {first} AND {last}"
        return self._unseen(below, rows=rows)
