"""A MariaDB table that is read by a column of timestamps, opened for its checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources import Figures, ReadLimit
from airflow_provider_microbatch.sources.jdbc import FAIL
from airflow_provider_microbatch.sources.jdbc.by_others import ways_by_others
from airflow_provider_microbatch.sources.jdbc.mariadb.opened import OpenMariaDbTable
from airflow_provider_microbatch.sources.jdbc.mariadb.timed_table import TimedTable, timed
from airflow_provider_microbatch.sources.jdbc.moment import Had, Moment, micros
from airflow_provider_microbatch.sources.jdbc.opened import LAG_SECONDS, MOST_COUNTED
from airflow_provider_microbatch.sources.jdbc.taken import Found
from airflow_provider_microbatch.sources.jdbc.timed import OpenTimed
from airflow_provider_microbatch.sources.pieces import Piece

_PLANNED = 0
"""Of a :class:`Moment` that was planned: MariaDB tells of no row which transaction wrote it."""


class OpenTimedMariaDb(OpenMariaDbTable, OpenTimed[TimedTable]):
    """A moment has no transactions here. Which rows of a time were read could not be told from those that are committed
    later. So a row is read once nothing can be committed before it any more, and then the time alone tells.
    """

    def has_new(self, position: Offset | None) -> bool:
        found = self._taken.find()
        with self._timed(found=found) as table:
            place = self._placed(table, position)
            if not table.any(table.ahead(place, table.now)):
                return False
            table.check()  # no sensor fires for what a plan refuses
            self._check_exact(table)
            self._check_none_behind(table, place, found)
            return table.any(table.ahead(place, table.settled(self._source.late_seconds)))

    def _next(self, start: Offset | None, limit: ReadLimit, found: Found) -> tuple[Moment, Moment] | None:
        with self._timed(found=found) as table:
            table.check()
            self._check_exact(table)
            begin = self._placed(table, start)
            if not table.any(table.ahead(begin, table.now)):
                return None
            last = table.last(table.ahead(begin, table.settled(self._source.late_seconds)), self._most(limit))
            if last is None:
                return None
            behind = len(table.intervals)
            end = Moment(time=last[0], key=last[1], below=_PLANNED, made=table.identity(), behind=behind)
            rows, digest = table.rows(table.between(begin, end))
            self._check_none_behind(table, begin, found)
        return begin, replace(end, rows=rows, digest=digest)

    def _seen(self, table: TimedTable) -> tuple[Moment, int | None]:
        return Moment(below=_PLANNED), micros(table.settled(self._source.late_seconds))

    def _told_apart(self, table: TimedTable, end: Moment) -> Moment:
        return end

    def _anew(self, table: TimedTable, had: Sequence[Had], spans: Sequence[Piece]) -> str | None:
        return None

    def check_offset(self, offset: Offset) -> None:
        with self._timed() as table:
            place = table.exact(self._place(offset))
            if table.ahead_of_clock(place) is not None:
                raise SourceError(f"{offset} lies in the future of the database's clock.")

    def is_after(self, offset: Offset | None, other: Offset | None) -> bool | None:
        one, two = self._place(offset), self._place(other)
        with self._timed() as table:
            if (one.below is None) != (two.below is None):
                written, read = (one, two) if one.below is None else (two, one)
                if self._other(table, read) is not None:
                    # Positions in another table lie before all of the current one. Of the same table some rows have
                    # been read, and nobody knows which.
                    return None if read.has_rows_of(table.identity()) else written is one
            one, two = table.exact(one), table.exact(two)
        if one.time is None or two.time is None:
            return one.time is not None and two.time is None
        # All rows of its time lie before a place without a key.
        order = [(place.time, place.key is None, place.key or 0) for place in (one, two)]
        return order[0] > order[1] if order[0] != order[1] or offset == other else None

    def lag(self, position: Offset | None) -> Figures:
        """Rows, counted up to :data:`MOST_COUNTED`: those too that nobody may read yet."""
        with self._timed(seconds=LAG_SECONDS) as table:
            place = self._placed(table, position)
            return Figures(rows=table.count_of(table.ahead(place, table.now), most=MOST_COUNTED))

    def not_read(self) -> str | None:
        with self._timed() as table:
            without = table.count_of(f"{table.time} IS NULL OR NOT ({table.after(Moment())})")
        if not without:
            return None
        return (
            f"{without:,} rows of {self._source.table} have no {self._source.timestamp!r}, or a zero date, and are not "
            "read as long as they have not. Give them one."
        )

    def _placed(self, table: TimedTable, offset: Offset | None) -> Moment:
        """The place of an offset in the table.

        :raises SourceError: if the table is another one by now, or the clock is behind the place.
        """
        place = table.exact(self._place(offset))
        other = self._other(table, place)
        if other is not None:
            raise SourceError(other)
        now = table.ahead_of_clock(place)
        if now is not None:
            back = self._set_offset(Moment(time=table.now).text(), reread=True)
            raise SourceError(
                f"rows up to {place.time} were read, and the database's clock says {now}: it was put back by more than "
                f"late_seconds={self._source.late_seconds:g}. What is written until it is there again would count as "
                "read. Put the clock right; then set the position to the time that the clock was put back to, as by "
                f"`{back}`: rows from there on that were read come again."
            )
        return place

    def _other(self, table: TimedTable, place: Moment) -> str | None:
        """The reason why a place does not belong to the current table; None if it does, as far as can be known."""
        then, now = place.made, table.identity()
        if then is None or place.spans:
            return self._other_than(place, now)
        what = then.elsewhere(now)
        if what is None and then.oid == now.oid:
            return None
        if what is None:
            what = f"{now.name} was made again, or written anew (TRUNCATE, OPTIMIZE, ALTER TABLE)"
        what = f"{what} (InnoDB's id of the table was {then.oid} then, and is {now.oid} now)."
        if then.is_by_others(now):
            return f"{what} {ways_by_others(place, now, self._set_offset)} {self._new_name()}"
        begin, here = (
            self._set_offset(moment.text(), skip=True, reread=then.is_same_table(now))
            for moment in (Moment(), replace(place, below=None))
        )
        return (
            f"{what} Where its rows are to be read from the first: `{begin}`; where they are the same rows, and what "
            f"lies before {place.time} was read: `{here}`."
        )

    def why_not_anew(self, start: Offset | None, end: Offset | None) -> str | None:
        """See :meth:`OpenSource.why_not_anew`. Rows that nobody waited for are planned anew with the others: only so
        do they get into a batch."""
        if end is None or end == start:
            return None
        try:
            there = self._between(start, end)
            if there == self._planned_rows(end) and self._source.on_missing == FAIL:
                others = self._others(start, end)
                return None if others is None else f"{others}."
            return self._lacks(there, end)
        except SourceError as error:
            return str(error)

    def doubt_anew(self, start: Offset | None, end: Offset | None) -> str | None:
        """See :meth:`OpenSource.doubt_anew`. Where rows may be left out :meth:`left_out` tells it."""
        if self._source.on_missing != FAIL:
            return None
        with suppress(SourceError):  # why_not_anew has told it
            return self._others(start, end)
        return None

    def left_out(
        self, start: Offset | None, end: Offset | None, *, told: Mapping[str, Any] | None = None
    ) -> str | None:
        """See :meth:`OpenSource.left_out`. A range with other rows than were planned, which no read takes, may have
        lost some where it is planned anew."""
        others = self._others(start, end) if told is None and self._source.on_missing != FAIL else None
        return super().left_out(start, end, told=told) if others is None else others

    def _others(self, start: Offset | None, end: Offset | None) -> str | None:
        """That a range has as many rows as were planned, or more, and other ones; None if it has not. Its digest does
        not tell which of more rows are the planned ones."""
        if end is None or end == start:
            return None
        there, planned, table = self._between(start, end), self._planned_rows(end), self._source.table
        if isinstance(there, str) or there < planned or not isinstance(self._there(start, end), str):
            return None
        if there == planned:
            return (
                f"as many rows of {table} are there as were planned ({planned:,}), and other ones: one that was "
                "planned is gone, or has changed, and what is published of it may be the only copy"
            )
        return (
            f"{there:,} rows of {table} are there where {planned:,} were planned: if one of these is gone, or has "
            "changed, what is published of it is the only copy"
        )

    def _between(self, start: Offset | None, end: Offset | None) -> int | str:
        with self._timed() as table:
            begin, place = table.exact(self._place(start)), table.exact(self._place(end))
            other = self._other(table, place) or self._other(table, begin)
            if other is not None:
                return other
            return table.count_of(table.between(begin, place.seen_now(None, behind=len(table.intervals))))

    def _there(self, start: Offset | None, end: Offset | None) -> int | str:
        begin, place = self._place(start), self._place(end)
        with self._timed(place=place) as table:
            begin, place = table.exact(begin), table.exact(place)
            other = self._other(table, place)
            if other is not None:
                return other
            there, digest = table.rows(table.between(begin, place))
        if there < place.rows or (there, digest) == (place.rows, place.digest) or place.by_hand:
            return there
        way = "A batch is taken back by `microbatch rewind`, and planned with all rows that are there then"
        if not place.spans:
            again = self._set_offset(Moment().text() if start is None else start, reread=True)
            way = (
                "A batch that is planned is taken back by `microbatch rewind`; rows behind what was committed are read "
                f"by `{again}`"
            )
        return (
            f"{there:,} rows of {self._source.table} are in the range where {place.rows:,} were planned, or others. "
            f"Some got their {self._source.timestamp!r} more than late_seconds={self._source.late_seconds:g} before "
            f"their transaction wrote anything, and nobody waited for them. Make late_seconds longer. {way}."
        )

    def _predicates(self, start: Offset | None, end: Offset | None) -> list[str]:
        begin, place = self._place(start), self._place(end)
        with self._timed(place=place) as table:
            whole = table.between(table.exact(begin), table.exact(place))
            return self._parted(table, whole, time=table.time)

    @contextmanager
    def _open_table(
        self, *, key: str | None, begin: Moment | None = None, seconds: float | None = None
    ) -> Iterator[TimedTable]:
        source = self._source
        connection = self._connect(source.conn_id)
        with (
            self._named(),
            timed(
                connection,
                table=source.table,
                time=source.timestamp or "",
                key=key,
                zone=source.time_zone,
                seconds=seconds,
            ) as table,
        ):
            yield table
