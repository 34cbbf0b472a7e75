"""Questions to MariaDB about the timestamps of a table, each answered in one snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.intervals import Unread
from airflow_provider_microbatch.sources.jdbc.intervals import ROWS
from airflow_provider_microbatch.sources.jdbc.mariadb.relation import WHOLE, Relation
from airflow_provider_microbatch.sources.jdbc.mariadb.running import now, running_since, statements_since
from airflow_provider_microbatch.sources.jdbc.mariadb.session import Session, connected, quoted_column
from airflow_provider_microbatch.sources.jdbc.mariadb.times import (
    before_all_later,
    latest_shown,
    moment_ms,
    plain,
    shown_at,
    shown_between,
)
from airflow_provider_microbatch.sources.jdbc.moment import Had, Made, Moment, columns_of, may_have, micros_of, written
from airflow_provider_microbatch.sources.jdbc.taken import planned_before
from airflow_provider_microbatch.sources.pieces import Piece, joined

_FIRST = "0001-01-01 00:00:00"
"""Before it there are zero dates alone, which Spark takes for null."""


@contextmanager
def timed(
    connection: Connection, *, table: str, time: str, key: str | None, zone: str, seconds: float | None = None
) -> Iterator[TimedTable]:
    """Open the table as it is at one moment.

    :param seconds: see :func:`connected`.
    :raises SourceError: if the database cannot be asked.
    """
    with connected(connection, seconds=seconds) as session:
        session.begin()
        yield TimedTable(session, table=table, time=time, key=key, zone=zone)


class TimedTable(Relation):
    """The table as its rows are planned by time.

    :param time: column of timestamps, as the user wrote it.
    :param key: column of whole numbers that orders rows of one time, as the user wrote it; None if there is none.
    :param zone: of a ``DATETIME``. The rest as :class:`Relation` has it.
    """

    def __init__(self, session: Session, *, table: str, time: str, key: str | None, zone: str) -> None:
        super().__init__(session, table=table)
        self.time, self._key = quoted_column(time), None if key is None else quoted_column(key)
        session.rows(f"SELECT {', '.join(self._order)} FROM {self._table} LIMIT 0")
        kind, self._digits, _ = self.kind(time)
        if kind not in ("timestamp", "datetime"):
            raise SourceError(f"column {self.time} of {self._table} is not of timestamps")
        self._in_utc = kind == "timestamp"
        try:
            self._zone = ZoneInfo("UTC" if self._in_utc else zone)
        except (OSError, ValueError) as error:
            raise SourceError(f"time_zone {zone!r:.100} is none that this process knows") from error
        self._bare_key, self._by = key, columns_of(time, key).lower()
        self.intervals: Sequence[Moment] = ()
        self._untold: Mapping[Moment, str] = {}

    def leave_out(self, intervals: Sequence[Moment], *, untold: Mapping[Moment, str]) -> None:
        """Have no row of these batches of data intervals, in the order in which they were planned, in a later range of
        the live lane.

        :param untold: those of them whose rows cannot be told from others, each with the reason.
        """
        self.intervals, self._untold = intervals, untold

    def spans(self, spans_ms: Iterable[Piece]) -> tuple[Piece, ...]:
        """The times that the column's own clock shows in spans of time, as :attr:`Moment.spans` has them.

        :param spans_ms: start and end (exclusive), milliseconds since the epoch, UTC.
        """
        shown = (shown_between(start, end, self._zone) for start, end in joined(spans_ms))
        return joined((micros_of(first), micros_of(last)) for first, last in shown)

    def had(self, one: Had) -> str:
        """Rows that a lane had taken."""
        return self._had(one, key=self._key)

    def _had(self, one: Had, *, key: str | None) -> str:
        """As :meth:`had`.

        :param key: the column that the key of its end is of, as SQL has it; None for none.
        """
        began = self.after(one.after) if one.since is None else f"{self.time} >= '{one.since}'"
        return f"{began} AND {self._up_to(one.end, key=key)}"

    def unread(self, condition: str) -> Unread | None:
        """The rows for which the condition holds, as rows that nobody has read; None if there is none."""
        count, *ends = self._session.row(
            f"SELECT count(*), cast(min({self.time}) AS char), cast(max({self.time}) AS char) FROM {self._table} WHERE "
            f"{condition}"
        )
        if not count:
            return None
        first, last = (moment_ms(datetime.fromisoformat(one), self._zone) for one in ends)
        return Unread(count=count, first_ms=first, last_ms=last, splits=ROWS)

    def check(self) -> None:
        """:raises SourceError: if its rows may be in no order."""
        self.made()
        if self._bare_key is None:
            return
        kind, _, may_be_null = self.kind(self._bare_key)
        if kind not in WHOLE:
            raise SourceError(f"column {self._key} of {self._table} is not of whole numbers; column=None does")
        if may_be_null:
            raise SourceError(f"column {self._key} of {self._table} may be null: make it NOT NULL, or column=None")

    def identity(self) -> Made:
        """The identity of the table."""
        name, made = self.made()
        return Made(name=name, oid=made, file=0, by=self._by)

    @property
    def now(self) -> str:
        """The present time, as the column has it: where clocks are put back soon, as they will be then."""
        return before_all_later(now(self._session), self._zone, digits=6)

    def ahead_of_clock(self, place: Moment) -> str | None:
        """The present time, as the column's clock shows it, if the time of the place lies ahead; else None."""
        if place.time is None:
            return None
        now_ms = now(self._session)
        present = shown_at(now_ms, self._zone)
        # Before clocks are put back, plans keep behind what is shown after that: no place of theirs is ahead of a right
        # clock. A user may name a time that clocks showed before.
        bound = latest_shown(now_ms, self._zone) if place.by_hand and place.time > present else present
        return present if place.time > bound else None

    def settled(self, late_seconds: float) -> str:
        """Begin a new snapshot, and return the time before which no row will be committed after it: the start of the
        oldest transaction that runs and has written, or of the oldest statement that may still write, less the seconds
        by which a transaction may write later than the time that it gives its rows."""
        statements_ms = statements_since(self._session)
        ms = min(statements_ms, running_since(self._session)) - int(1000 * late_seconds)
        self._session.begin()
        return before_all_later(ms, self._zone, digits=self._digits)

    def after(self, start: Moment) -> str:
        """Rows behind ``start``."""
        if start.time is None:
            return f"{self.time} >= '{_FIRST}'"
        if self._key is None or start.key is None:
            return f"{self.time} > '{start.time}'"
        return f"{self.time} >= '{start.time}' AND ({self.time} > '{start.time}' OR {self._key} > {start.key})"

    def between(self, start: Moment, end: Moment, *, replayed: bool = True) -> str:
        """Rows of the range.

        :param replayed: changes nothing: no row comes into a range that could be planned.
        :raises SourceError: if its rows cannot be told from others.
        """
        if end in self._untold:
            raise SourceError(self._untold[end])
        column = end.key_column(self._bare_key)
        key = None if column is None else quoted_column(column)
        others = "".join(f" AND NOT ({self._had(one, key=key)})" for one in end.had)
        others = others if end.spans else self._but(planned_before(end, self.intervals), start.time, end.time)
        return f"{self.after(start)} AND {self._up_to(end, key=key)}{others}"

    def ahead(self, start: Moment, until: str) -> str:
        """Rows behind ``start`` and before the time ``until``."""
        return f"{self.after(start)} AND {self.time} < '{until}'{self._but(self.intervals, start.time, until)}"

    def _up_to(self, end: Moment, *, key: str | None) -> str:
        """Rows at or before ``end``; of a data interval, those of its times."""
        if end.spans:
            times = (f"{self.time} >= '{written(a)}' AND {self.time} < '{written(b)}'" for a, b in end.spans)
            return f"({' OR '.join(times)})"
        if end.time is None:
            return "1 = 0"
        bound = f"{self.time} <= '{end.time}'"
        if key is not None and end.key is not None:
            bound += f" AND ({self.time} < '{end.time}' OR {key} <= {end.key})"
        return bound

    def _but(self, intervals: Sequence[Moment], first: str | None, last: str | None) -> str:
        """The condition that no data interval has a row of these times."""
        of = (one for one in intervals if may_have(one, first, last))
        return "".join(f" AND NOT ({self.between(Moment(), one)})" for one in of)

    def last(self, condition: str, most: int | None) -> tuple[str, int | None] | None:
        """Time and key of the last row for which the condition holds, or of the last among the first ``most`` rows."""
        columns = f"SELECT cast({self.time} AS char), {self._key or 'NULL'} FROM {self._table} WHERE {condition}"
        if most is not None:
            found = self._session.rows(f"{columns} ORDER BY {', '.join(self._order)} LIMIT 1 OFFSET {most - 1}")
            if found:
                return found[0][0], found[0][1]
        found = self._session.rows(f"{columns} ORDER BY {', '.join(one + ' DESC' for one in self._order)} LIMIT 1")
        return (found[0][0], found[0][1]) if found else None

    def rows(self, condition: str) -> tuple[int, str]:
        """Number of rows for which the condition holds, and a digest of them that does not depend on their order."""
        count, digest = self._session.row(
            f"SELECT count(*), coalesce(sum(crc32(concat_ws(' ', {', '.join(self._order)}))), 0) FROM {self._table} "
            f"WHERE {condition}"
        )
        return int(count), str(digest)

    def bounds(self, condition: str, parts: int) -> list[str]:
        """Times that divide the rows for which the condition holds into about ``parts`` parts; no outer bounds."""
        rows = self._session.rows(
            f"SELECT DISTINCT cast(max(t) AS char) AS last FROM (SELECT {self.time} AS t, ntile({parts}) OVER (ORDER "
            f"BY {self.time}) AS part FROM {self._table} WHERE {condition}) AS parts GROUP BY part ORDER BY last"
        )
        return [last for (last,) in rows[:-1]]

    def exact(self, place: Moment) -> Moment:
        """The same place, its time as MariaDB writes it.

        :raises SourceError: if it is no time that MariaDB has.
        """
        if place.time is None:
            return place
        try:
            return replace(place, time=plain(place.time, in_utc=self._in_utc))
        except ValueError as error:
            raise SourceError(f"{place.time!r:.60} is no time that MariaDB has: {error}") from error

    @property
    def _order(self) -> list[str]:
        return [self.time] if self._key is None else [self.time, self._key]
