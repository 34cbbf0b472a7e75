"""Questions to PostgreSQL about the timestamps of a table, each answered in one snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.intervals import Unread
from airflow_provider_microbatch.sources.jdbc.intervals import ROWS
from airflow_provider_microbatch.sources.jdbc.moment import Had, Made, Moment, Running, columns_of, micros_of
from airflow_provider_microbatch.sources.jdbc.ranges_by_time import Ranges
from airflow_provider_microbatch.sources.jdbc.relation import FILES, WHOLE, Relation
from airflow_provider_microbatch.sources.jdbc.session import connected, lock, quoted, quoted_column
from airflow_provider_microbatch.sources.jdbc.transactions import TRANSACTION, Ended, running_now
from airflow_provider_microbatch.sources.pieces import Piece, joined

_TYPES = {1184: "timestamptz", 1114: "timestamp"}  # by their oids


@contextmanager
def timed(
    connection: Connection,
    *,
    table: str,
    time: str,
    key: str | None,
    zone: str,
    ended: Ended | None = None,
    seconds: float | None = None,
) -> Iterator[TimedTable]:
    """Open the table as it is at one moment.

    :param ended: what had ended before, to find the transactions that run; None if they need not be known.
    :param seconds: see :func:`~airflow_provider_microbatch.sources.jdbc.session.connected`. Not with ``ended``.
    :raises SourceError: if the database cannot be asked.
    """
    with connected(connection, seconds=seconds) as opened:
        ran = (0, []) if ended is None else running_now(opened, ended)
        lock(opened, quoted(table))
        opened.execute("SET LOCAL timezone = 'UTC'")
        opened.execute("SET LOCAL datestyle = 'ISO, YMD'")
        yield TimedTable(opened, table=table, time=time, key=key, zone=zone, ran=ran)


class TimedTable(Relation):
    """The table as its rows are planned by time.

    :param time: column of timestamps, as the user wrote it.
    :param key: column of whole numbers that orders rows of one time, as the user wrote it; None if there is none.
    :param zone: of timestamps that have none. The rest as :class:`Relation` has it.
    """

    def __init__(
        self, opened: Any, *, table: str, time: str, key: str | None, zone: str, ran: tuple[int, list[int]]
    ) -> None:
        super().__init__(opened, table=table, ran=ran)
        self._zone = zone
        self.ranges = Ranges(time=quoted_column(time), key=key)
        kinds, self._numbers = self._described(self.ranges.order)
        self._type = _TYPES.get(kinds[0], "")
        if not self._type:
            raise SourceError(f"column {self.ranges.time} of {self._table} is not of timestamps")
        if key is not None and kinds[1] not in WHOLE:
            raise SourceError(f"column {self.ranges.key} of {self._table} is not of whole numbers; column=None does")
        self._bare_key, self._by = key, columns_of(time, key)

    def leave_out(self, intervals: Sequence[Moment], *, untold: Mapping[Moment, str]) -> None:
        """Have no row of these batches of data intervals in a later range of the live lane, as :class:`Ranges` has
        them."""
        ranges = self.ranges
        self.ranges = Ranges(time=ranges.time, key=ranges.bare_key, intervals=intervals, untold=untold)

    @property
    def now(self) -> str:
        """The present time as an SQL expression of the column's type."""
        if self._type == "timestamptz":
            return "now()"
        return "(now() AT TIME ZONE '" + self._zone.replace("'", "''") + "')"

    def spans(self, spans_ms: Iterable[Piece]) -> tuple[Piece, ...]:
        """The times that the column's own clock shows in spans of time, as :attr:`Moment.spans` has them. Where clocks
        are put back, two spans of time may have the same times; those that clocks leave out belong to the span after
        them.

        :param spans_ms: start and end (exclusive), milliseconds since the epoch, UTC.
        """
        return joined(self._local(*span) for span in joined(spans_ms))

    def _local(self, start_ms: int, end_ms: int) -> Piece:
        if self._type == "timestamptz":
            return 1000 * start_ms, 1000 * end_ms
        # A clock is put back by less than three hours, at a full second: behind the start there may be earlier times
        # than at the start, and before the end later ones than at the end.
        first, last = self._row(
            "SELECT (SELECT min(at) FROM (SELECT (a - tick) AT TIME ZONE %s + tick AS at UNION ALL "
            "SELECT one AT TIME ZONE %s FROM generate_series(a, least(a + moved, b - tick), second) AS one) AS x), "
            "(SELECT max(at) FROM (SELECT (b - tick) AT TIME ZONE %s + tick AS at UNION ALL "
            "SELECT one AT TIME ZONE %s + second FROM generate_series(b - second, greatest(a, b - moved), -second) "
            "AS one) AS x) FROM (SELECT 'epoch'::timestamptz + %s * interval '1 ms' AS a, "
            "'epoch'::timestamptz + %s * interval '1 ms' AS b, interval '1 us' AS tick, interval '1 s' AS second, "
            "interval '3 h' AS moved) AS asked",
            *[self._zone] * 4,
            start_ms,
            end_ms,
        )
        return micros_of(first), micros_of(last)

    def between(self, start: Moment, end: Moment, *, replayed: bool = True) -> str:
        """Rows of a range, as :class:`Ranges` has it."""
        return self.ranges.between(start, end, replayed=replayed)

    def had(self, one: Had) -> str:
        """Rows that a lane had taken."""
        return self.ranges.had(one)

    def unread(self, condition: str) -> Unread | None:
        """The rows for which the condition holds, as rows that nobody has read; None if there is none."""
        time = self.ranges.time
        if self._type != "timestamptz":
            time = f"({time} AT TIME ZONE '" + self._zone.replace("'", "''") + "')"
        first, last = (f"floor(extract(epoch FROM {which}({time})) * 1000)::bigint" for which in ("min", "max"))
        count, first_ms, last_ms = self._row(f"SELECT count(*), {first}, {last} FROM {self._table} WHERE {condition}")
        return Unread(count=count, first_ms=first_ms, last_ms=last_ms, splits=ROWS) if count else None

    def check(self) -> None:
        """:raises SourceError: if its rows do not tell which transaction wrote them, may be in no order, or are written
        elsewhere."""
        self.check_told()
        self.check_written_here()
        (may_be_null,) = self._row(
            "SELECT EXISTS (SELECT FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = %s::regclass "
            "AND a.attname = %s AND NOT a.attnotnull)",
            self._table,
            self._bare_key,
        )
        if may_be_null:
            raise SourceError(
                f"column {self.ranges.key} of {self._table} may be null: make it NOT NULL, or column=None"
            )
        self._row(f"SELECT {self.now}")

    def identity(self) -> Made:
        """The identity of the table."""
        name, oid, file = self._made(FILES, self._table)
        by, numbers = self._by, self._numbers
        return Made(name=name, oid=int(oid), file=int(file), cluster=self._cluster, by=by, numbers=numbers)

    def rows(self, condition: str) -> tuple[int, str]:
        """Number of rows for which the condition holds, and a digest of them that does not depend on their order."""
        texts = " || ' ' || ".join(f"{column}::text" for column in self.ranges.order)
        found = self._row(
            f"SELECT count(*), coalesce(sum(hashtextextended({texts} || ' ' || ({TRANSACTION})::text, 0)), "
            f"0)::text FROM {self._table} WHERE {condition}"
        )
        return int(found[0]), str(found[1])

    def last(self, condition: str, most: int | None) -> tuple[str, int | None] | None:
        """Time and key of the last row for which the condition holds, or of the last among the first ``most`` rows."""
        order, key = self.ranges.order, self.ranges.key or "NULL::bigint"
        columns = f"SELECT {self.ranges.time}::text, {key} FROM {self._table} WHERE {condition} ORDER BY "
        if most is not None:
            found = self._row(f"{columns}{', '.join(order)} LIMIT 1 OFFSET {most - 1}")
            if found is not None:
                return found[0], found[1]
        found = self._row(f"{columns}{', '.join(one + ' DESC' for one in order)} LIMIT 1")
        return None if found is None else (found[0], found[1])

    def earlier(self, time: str, seconds: float) -> str:
        """The time that lies ``seconds`` before ``time``."""
        (found,) = self._row(f"SELECT (%s::{self._type} - make_interval(secs => %s))::text", time, seconds)
        return str(found)

    def exact(self, place: Moment) -> Moment:
        """The same place, its times as PostgreSQL writes them in UTC: a user may write one without a zone, which
        Spark's session would read in a zone of its own."""
        found = self._opened.execute(
            f"SELECT one::{self._type}::text FROM unnest(%s::text[]) WITH ORDINALITY AS times(one, at) ORDER BY at",
            [[place.time, place.since]],
        )
        (time,), (since,) = found
        return replace(place, time=time, since=since)

    def is_to_come(self, time: str) -> bool:
        """Whether a time lies in the future of the database's clock."""
        (found,) = self._row(f"SELECT {self.now} < %s::{self._type}", time)
        return bool(found)

    def compared(self, one: str, other: str) -> int:
        """-1, 0 or 1 if ``one`` lies before ``other``, is the same, or lies after it."""
        (found,) = self._row(
            f"SELECT CASE WHEN a < b THEN -1 WHEN a > b THEN 1 ELSE 0 END FROM (SELECT %s::{self._type} AS a, "
            f"%s::{self._type} AS b) AS times",
            one,
            other,
        )
        return int(found)

    def earliest(self, times: Sequence[str]) -> str:
        """The earliest of the times, of which there is at least one."""
        (found,) = self._row(f"SELECT min(one)::text FROM unnest(%s::text[]::{self._type}[]) AS one", list(times))
        return str(found)

    def bounds(self, condition: str, parts: int) -> list[str]:
        """Times that divide the rows for which the condition holds into about ``parts`` parts; no outer bounds."""
        rows = self._opened.execute(
            f"SELECT DISTINCT max(t) AS last, max(t)::text FROM (SELECT {self.ranges.time} AS t, ntile({parts}) OVER "
            f"(ORDER BY {self.ranges.time}) AS part FROM {self._table} WHERE {condition}) AS parts GROUP BY part "
            "ORDER BY last"
        ).fetchall()
        return [text for _, text in rows[:-1]]

    def running(self, end: Moment, start: Moment, since: str) -> list[Running]:
        """Transactions below the first id of which no row is visible that may still commit rows before ``end``: those
        that ran, or began since, and are not visible.

        :param end: a moment with that id.
        :param start: the previous moment, whose own running transactions remain awaited.
        :param since: the timestamp from which rows of the other transactions are looked for.
        """
        rows = f"FROM {self._table} WHERE {self.ranges.times(end)}"
        found: list[Running] = []
        for one in self._unseen(end.below or 0, rows=rows):
            before = next((old for old in start.running if old.first <= one <= old.last), None)
            begin = since if before is None else before.since
            if found and found[-1].last == one - 1 and found[-1].since == begin:
                found[-1] = Running(first=found[-1].first, last=one, since=begin)
            else:
                found.append(Running(first=one, last=one, since=begin))
        return found

    def newest(self, end: Moment, since: str) -> list[Running]:
        """Transactions from that id on which had ids when the snapshot was taken. Whatever they have become: it has no
        row of theirs, and without them on record those that lie before the window would not be looked for.

        :param end: see :meth:`running`.
        :param since: likewise.
        """
        below, bound = end.below or 0, self.bound()
        return [Running(first=below, last=bound - 1, since=since)] if below < bound else []
