"""Questions to MariaDB about the numbers of a table, each answered in one snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.jdbc.mariadb.relation import WHOLE, Relation
from airflow_provider_microbatch.sources.jdbc.mariadb.running import now, running_since
from airflow_provider_microbatch.sources.jdbc.mariadb.session import Session, connected, quoted_column
from airflow_provider_microbatch.sources.jdbc.mariadb.spans import within
from airflow_provider_microbatch.sources.jdbc.offset import Table, between

_CHUNK = 100
"""So many spans are looked up by the index; of many more MariaDB would rather go through all rows."""


@contextmanager
def snapshot(
    connection: Connection, *, table: str, column: str, waits: bool = False, seconds: float | None = None
) -> Iterator[Snapshot]:
    """Open the table as it is at one moment.

    :param waits: also find since when transactions run; otherwise they seem to run for ever.
    :param seconds: see :func:`connected`. Not with ``waits``.
    :raises SourceError: if the database cannot be asked.
    """
    with connected(connection, seconds=seconds) as session:
        running_since_ms = running_since(session) if waits else 0
        session.begin()
        yield Snapshot(session, table=table, column=column, running_since_ms=running_since_ms)


class Snapshot(Relation):
    """The table as its rows are planned by number.

    :param column: as the user wrote it.
    :param running_since_ms: what :func:`running_since` returned. The rest as :class:`Relation` has it.
    """

    def __init__(self, session: Session, *, table: str, column: str, running_since_ms: int) -> None:
        super().__init__(session, table=table)
        self._column, self._bare_column = quoted_column(column), column
        self._running_since_ms = running_since_ms

    def check(self) -> None:
        """:raises SourceError: if the column does not have whole numbers."""
        self.made()
        self._session.rows(f"SELECT {self._column} FROM {self._table} LIMIT 0")
        if self.kind(self._bare_column)[0] not in WHOLE:
            raise SourceError(f"column {self._column} of {self._table} is not of whole numbers")

    def identity(self) -> Table:
        """The identity of the table."""
        name, made = self.made()
        return Table(name=name, oid=made, sequence=None, by=self._bare_column.lower())

    def moment(self) -> tuple[int, int]:
        """The time, milliseconds since the epoch; and since when the oldest transaction runs."""
        return now(self._session), self._running_since_ms

    def bound(self) -> int:
        """The next millisecond: who begins in it or after it takes later numbers than those that are missing in the
        snapshot."""
        return now(self._session) + 1

    def any_after(self, number: int) -> bool:
        """Whether there is a row behind ``number``."""
        return self.any(f"{self._column} > {number}")

    def last(self, after: int, most: int | None) -> int:
        """The highest number behind ``after``, of the first ``most`` rows if there is a limit; ``after`` if there is
        none."""
        limit = "" if most is None else f" ORDER BY {self._column} LIMIT {most}"
        (found,) = self._session.row(
            f"SELECT max(n) FROM (SELECT {self._column} AS n FROM {self._table} WHERE {self._column} > {after}{limit}) "
            "AS first"
        )
        return after if found is None else int(found)

    def highest(self, first: int) -> int | None:
        """The highest number of all rows from ``first`` on; None if there is none."""
        (found,) = self._session.row(f"SELECT max({self._column}) FROM {self._table} WHERE {self._column} >= {first}")
        return None if found is None else int(found)

    def given(self) -> int | None:
        """The number that was assigned last; None for a column without AUTO_INCREMENT. The counter of another one
        tells nothing: each gap beyond it would be waited for, for ever."""
        (found,) = self._session.row(
            "SELECT if(EXISTS (SELECT 1 FROM information_schema.columns WHERE "
            f"{self._of} AND column_name = %s AND extra LIKE '%%auto_increment%%'), auto_increment, NULL) "
            f"FROM information_schema.tables WHERE {self._of}",
            *self._named,
            self._bare_column,
            *self._named,
        )
        return None if found is None else int(found) - 1

    def missing(self, first: int, last: int, *, most: int | None = None) -> list[tuple[int, int]]:
        """First and last of the missing numbers from ``first`` to ``last``, both included; of the first ``most`` gaps
        if there is a limit."""
        limit = "" if most is None else f" LIMIT {most}"
        rows = self._session.rows(
            "SELECT previous + 1, n - 1 FROM ("
            f"SELECT n, coalesce(lag(n) OVER (ORDER BY n), {first - 1}) AS previous FROM ("
            f"SELECT cast({self._column} AS decimal(20)) AS n FROM {self._table} WHERE {self._column} BETWEEN {first} "
            f"AND {last} UNION ALL SELECT {last + 1}) AS present) AS pairs WHERE n - previous > 1 ORDER BY n{limit}"
        )
        return [(int(one), int(other)) for one, other in rows]

    def filled(self, spans: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        """The spans that contain a row."""
        chunks = [spans[at : at + _CHUNK] for at in range(0, len(spans), _CHUNK)]
        with_rows = [chunk for chunk in chunks if self.any(between(self._column, chunk))]
        return {span for chunk in with_rows for span in chunk if self.any(between(self._column, [span]))}

    def count(self, spans: Sequence[tuple[int, int]], *, most: int | None = None) -> int:
        """Number of rows in the spans, or ``most`` if there are more."""
        return self.count_of(within(self._column, spans), most=most)
