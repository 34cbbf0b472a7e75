"""A table that is read by a column of timestamps, opened for its checkpoint."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.exceptions import IntervalError, SourceError
from airflow_provider_microbatch.sources import UNLIMITED, ReadLimit, SourceContext, digest_of_range
from airflow_provider_microbatch.sources.intervals import (
    CommittedRange,
    HeldRange,
    HeldRanges,
    Interval,
    IntervalSurvey,
)
from airflow_provider_microbatch.sources.jdbc.intervals import Batches, Table, free, live_of, survey
from airflow_provider_microbatch.sources.jdbc.moment import Had, Made, Moment, micros, written
from airflow_provider_microbatch.sources.jdbc.opened import OpenTable
from airflow_provider_microbatch.sources.jdbc.taken import Found, Log, Taken, by_times, is_of, other_than
from airflow_provider_microbatch.sources.pieces import Piece, common, joined

if TYPE_CHECKING:
    from airflow_provider_microbatch.sources.jdbc import JdbcSource


class Times(Table, Protocol):
    """The rows of a table at one moment."""

    def check(self) -> None:
        """:raises SourceError: if the column does not have timestamps that can be read by."""

    def exact(self, place: Moment) -> Moment:
        """The same place, its times as the column's own clock shows them."""

    def leave_out(self, intervals: Sequence[Moment], *, untold: Mapping[Moment, str]) -> None:
        """Have no row of these batches of data intervals, in the order in which they were planned, in a later range of
        the live lane.

        :param untold: those of them whose rows cannot be told from others, each with the reason: a range that needs
            one is refused.
        """

    def has_column(self, name: str, number: int | None, /) -> bool:
        """Whether the table has a column of this name, and of this number of the database's, where it has them."""

    def rows(self, condition: str) -> tuple[int, str]:
        """Number of rows for which the condition holds, and a digest of them that does not depend on their order."""

    def inexact(self, *, texts: Sequence[str]) -> list[str]:
        """Columns that Spark cannot carry exactly."""

    def last(self, condition: str, most: int | None) -> tuple[str, int | None] | None:
        """Time and key of the last row for which the condition holds, or of the last among the first ``most`` rows."""

    def bounds(self, condition: str, parts: int) -> list[str]:
        """Times that divide the rows for which the condition holds into about ``parts`` parts; no outer bounds."""


T = TypeVar("T", bound=Times)


class OpenTimed(OpenTable, Generic[T]):
    """Offsets are :class:`~airflow_provider_microbatch.sources.jdbc.moment.Moment` as JSON."""

    def __init__(self, source: JdbcSource, context: SourceContext) -> None:
        super().__init__(source, context)
        self._lane = context.lane
        self._checkpoint = context.checkpoint
        self._committed = context.committed
        self._taken = Taken(context.state)

    @abstractmethod
    def _open_table(
        self, *, key: str | None, begin: Moment | None = None, seconds: float | None = None
    ) -> AbstractContextManager[T]:
        """Open the table as it is at one moment.

        :param key: the column that orders rows of one time; None for none.
        :param begin: the start of a range that is planned, for which the transactions that run have to be known. Not
            with ``seconds``.
        :param seconds: the longest time that a statement may take; None for no limit.
        """

    @contextmanager
    def _timed(
        self,
        *,
        begin: Moment | None = None,
        seconds: float | None = None,
        found: Found | None = None,
        place: Moment | None = None,
    ) -> Iterator[T]:
        """Open the table, as :meth:`_open_table` does. What data intervals have taken of it is in no range of the live
        lane.

        :param found: what lanes have taken; None to look.
        :param place: the end of the range that is read; None for none.
        """
        found = self._taken.find() if found is None else found
        with self._open_table(key=self._key(place), begin=begin, seconds=seconds) as table:
            if found.intervals:
                now = table.identity()
                why = ((one, self._without_key(table, lane, one, now)) for lane, one in found.intervals)
                table.leave_out(
                    [one if is_of(one, now) else Moment() for _, one in found.intervals],
                    untold={one: text for one, text in why if text is not None},
                )
            yield table

    def _without_key(self, table: T, lane: str, interval: Moment, now: Made) -> str | None:
        """The reason why the rows of a data interval cannot be told from those of the live lane, in whose last time it
        has the ones behind a key; None if they can."""
        then = interval.made
        if then is None or then.key is None or not interval.has_keys:
            return None
        if not then.is_by_others(now) or table.has_column(then.key, then.key_number):
            return None
        return self._key_gone(f"lane {lane}", then.key, now)

    def _key_gone(self, who: str, key: str, now: Made) -> str:
        return (
            f"{who} has rows that are told by column {key!r}, which {now.name} does not have any more, or it has "
            "another one of that name. Give the column that name again (ALTER TABLE … RENAME COLUMN), or go on as "
            f"another source. {self._new_name()}"
        )

    def _key(self, place: Moment | None) -> str | None:
        """See :meth:`Moment.key_column`."""
        return (place or Moment()).key_column(self._source.column)

    @abstractmethod
    def _next(self, start: Offset | None, limit: ReadLimit, found: Found) -> tuple[Moment, Moment] | None:
        """Begin and end of the next range; None if there is nothing.

        :param found: what lanes had taken before the look at the table.
        """

    @abstractmethod
    def _seen(self, table: T) -> tuple[Moment, int | None]:
        """What is visible, as a moment without times; and the time from which on rows may not be read yet, microseconds
        as the column has it, or None for no bound."""

    @abstractmethod
    def _told_apart(self, table: T, end: Moment) -> Moment:
        """The same batch of a data interval, with what tells its rows from those that are committed later."""

    @abstractmethod
    def _anew(self, table: T, had: Sequence[Had], spans: Sequence[Piece]) -> str | None:
        """The reason why rows of these times that lanes have taken, of the same table, cannot be told from others; None
        if they can, as far as is known."""

    def latest_offset(self, start: Offset | None, limit: ReadLimit = UNLIMITED) -> Offset | None:
        """Return the end of the next range. Writes down that its rows are the live lane's, before its entry is
        there."""
        while True:
            found = self._taken.find()
            planned = self._next(start, limit, found)
            if planned is None:
                return start
            begin, end = planned
            log = self._log() if begin.by_hand or not found.live else Log()
            if self._taken.claim(found, begin, end, log=log):
                return end.text()

    def _check_none_behind(self, table: T, begin: Moment, found: Found) -> None:
        """Check that the live lane has no row twice, of those that data intervals read behind a place. Which these are
        is not known of a table that was written anew since; nor of one that was made again, where the place tells
        nothing of it: one by hand, or the first of all.

        :param begin: where the live lane goes on. Of a position without a key all rows of its time count as read.
        :raises SourceError: if it may have.
        """
        now, at = table.identity(), micros(begin.time)
        is_read = begin.time is not None and not begin.by_hand
        # The batch that ended there, in the very same files, has looked at those that were planned before it.
        known = begin.behind if begin.made is not None and begin.made.file == now.file else 0
        others, why = list[int](), ""
        for _, one in found.intervals[known:]:
            first = one.spans[0][0] if at is None else at + (begin.key is None)
            behind = common(one.spans, [(first, _latest(one) + 1)])
            # Of intervals of another table a user was told before the lane had a position that was read in this one.
            if not behind or (is_read and not is_of(one, now)):
                continue
            reason = other_than(one, now) or self._anew(table, [Had(after=Moment(), end=one)], behind)
            if reason is not None:
                others.append(_latest(one))
                why = why or reason
        if not others or (begin.time is None and self._is_set_to_first()):
            return
        last = max(others)
        anew, here = (
            self._set_offset(place.text(), skip=True, reread=True) for place in (Moment(), Moment(time=written(last)))
        )
        where = "the first row, where the live lane begins"
        if begin.time is not None:
            where = f"the position{' by hand' if begin.by_hand else ''}, {begin.time}"
        # A lane that is at the first row cannot be set there.
        from_first = "" if begin.time is None else f"; where its rows are to be read from the first: `{anew}`"
        raise SourceError(
            f"source {self._name!r}: data intervals were read up to {written(last)}, behind {where}, and would be read "
            f"twice: {why} Where they are the same rows: `{here}`, which passes over what no interval has read up to "
            f"there{from_first}. {self._new_name()}"
        )

    def _is_set_to_first(self) -> bool:
        """Whether a command has set the live lane to the table's first row, and whoever gave it has allowed that rows
        are read again. The newest range that the lane has moved by tells it: no plan ends there."""
        newest = next(iter(self._committed(LIVE)), None)
        return newest is not None and not newest.is_read

    def why_not_back(self, position: Offset | None, end: Offset | None) -> str | None:
        """See :meth:`OpenSource.why_not_back`. A command that sets the lane to the first row has leave to read again
        what intervals have read: no plan that follows it is refused for them."""
        if self._place(position).time is not None:
            return super().why_not_back(position, end)
        try:
            self.check()
        except SourceError as error:
            return str(error)
        return None

    def _log(self) -> Log:
        """The live lane's committed batches."""
        committed = list(self._committed(LIVE))
        if not committed:
            return Log()
        # All that retention removed is one range, from nowhere. A command on an empty lane begins there too.
        is_whole = committed[-1].start is not None or not committed[-1].is_read
        kept = committed if is_whole else committed[:-1]
        with self._timed() as table:
            return Log(ranges=self._shown(table, list(reversed(kept))), is_whole=is_whole)

    def survey_interval(self, interval: Interval, held: HeldRanges) -> IntervalSurvey:
        """Survey by the rows' timestamps. Of rows before the interval those are told that nobody has, for
        ``late_seconds`` before it."""
        found = self._taken.find()
        with self._timed(found=found) as table:
            table.check()
            self._check_exact(table)
            seen, until = self._seen(table)
            wanted = joined(table.spans([(interval.start_ms, interval.end_ms), *interval.late]))
            found = self._of_table(table, found, wanted)
            made = survey(
                table,
                interval,
                lane=self._lane,
                found=found,
                batches=self._batches(table, held),
                held=held,
                seen=seen,
                until=until,
                window_ms=round(1000 * self._source.late_seconds),
            )
            return replace(made, waits=self._waits(table, interval, until))

    def why_untold(self, interval: Interval) -> str | None:
        """See :meth:`TellsOthers.why_untold`. A survey is refused for the same reasons."""
        found = self._taken.find()
        with self._timed(found=found) as table:
            return self._why_untold(table, found, table.spans([(interval.start_ms, interval.end_ms)]))

    def _waits(self, table: T, interval: Interval, until: int | None) -> str | None:
        """Why rows of the interval may still be committed; None if none can be.

        :param until: see :meth:`_seen`.
        """
        last = table.spans([(interval.start_ms, interval.end_ms)])[-1][1]
        if until is None or until >= last:
            return None
        return (
            f"rows of {interval} may still be committed, by what runs or by clocks that differ "
            f"(late_seconds={self._source.late_seconds:g}): rows may be read up to {written(until)} of "
            f"{self._source.timestamp!r} so far"
        )

    def plan_interval(self, interval: Interval, held: HeldRanges) -> tuple[Offset | None, Offset | None]:
        """Take all rows of the interval that may be read, and that no lane has."""
        start = Moment().text()
        while True:
            found = self._taken.find()
            with self._timed(begin=Moment(), found=found) as table:
                table.check()
                self._check_exact(table)
                before = found.of_table(table.identity()).of(self._lane)
                if before is None:
                    end = self._all_left(table, interval, held, found)
                    count, digest = table.rows(table.between(Moment(), end, replayed=False))
            if before is not None:
                return start, self._counted(before).text()
            if not count:
                return start, start
            end = replace(end, rows=count, digest=digest)
            if self._taken.take(found, self._lane, end):
                return start, end.text()

    def _counted(self, end: Moment) -> Moment:
        """The batch that the interval has taken before, with the number of rows that are there now."""
        with self._timed(place=end) as table:
            count, digest = table.rows(table.between(Moment(), end))
        return replace(end, rows=count, digest=digest)

    def taken_by(self) -> set[str]:
        """The lanes of data intervals with rows that no other lane reads; all that have taken rows where the database
        does not tell whether the table is another one: a check without the connection would tell of none."""
        found = self._taken.find()
        if not found.intervals:
            return set()
        try:
            with self._timed(found=found) as table:
                now = table.identity()
        except SourceError:
            return {lane for lane, _ in found.intervals}
        begun = found.of_table(now).live
        return {lane for lane, one in found.intervals if is_of(one, now) or not _began_before(begun, one.spans)}

    def _all_left(self, table: T, interval: Interval, held: HeldRanges, found: Found) -> Moment:
        """The batch of all rows that the interval takes.

        :raises IntervalError: if rows of it may still be committed, and no other lane would read them. The survey may
            have found that none can be: a transaction that had written nothing then counts from its start once it has.
        """
        seen, until = self._seen(table)
        waits = self._waits(table, interval, until) if interval.whole else None
        if waits is not None:
            raise IntervalError(f"source {self._name!r}: {waits}, and would be in no batch. Try again.")
        wanted = joined(table.spans([(interval.start_ms, interval.end_ms), *interval.late]))
        found = self._of_table(table, found, wanted)
        live = live_of(found, self._batches(table, held), table.identity())
        readable = wanted if until is None else common(wanted, [(wanted[0][0], until)])
        end = free(readable, seen=seen, found=found, live=live)
        last = table.last(table.between(Moment(), end, replayed=False), None)
        end = replace(end, time=None if last is None else last[0], made=table.identity())
        return self._told_apart(table, end)

    def _of_table(self, table: T, found: Found, spans: Sequence[Piece]) -> Found:
        """What lanes have taken of the table as it is now.

        :param spans: the times that are asked for.
        :raises SourceError: if nobody knows which of its rows these are.
        """
        why = self._why_untold(table, found, spans)
        if why is not None:
            raise SourceError(f"{why} {self._new_name()}")
        return found.of_table(table.identity())

    def _why_untold(self, table: T, found: Found, spans: Sequence[Piece]) -> str | None:
        """The reason why nobody knows which rows of these times lanes have taken, of the table as it is now; None if it
        is known, as far as can be told."""
        now = table.identity()
        of_now = found.of_table(now)
        # Where a user has said from where on a table that was made again is to be read, the live lane has what lies
        # behind. Which rows before that place lanes had, as the same rows of before, is not known.
        if not _began_before(of_now.live, spans):
            times = [one for _, one in found.intervals if common(one.spans, spans) or _is_by_other_time(one, now)]
            others = [*(one.end for one in found.live), *times]
            other = next((why for why in (other_than(one, now) for one in others) if why is not None), None)
            if other is not None:
                return other
        intervals = (Had(after=Moment(), end=one) for _, one in of_now.intervals if common(one.spans, spans))
        return self._anew(table, [*of_now.live, *intervals], spans)

    def _other_than(self, place: Moment, now: Made) -> str | None:
        """The reason why the batch of a data interval does not belong to the current table; None if it does."""
        why, then = other_than(place, now), place.made
        if why is None and then is not None and then.key is not None and place.has_keys and then.has_others(now):
            return self._key_gone("the batch", then.key, now)
        return None if why is None else f"{why} {self._new_name()}"

    def _new_name(self) -> str:
        new = f"{self._name}_2"
        return (
            "Which of its rows were read cannot be known. Read it as a source of a name that was never used: give it "
            f"that name in the pipeline, such as {new!r}, and say that it is new: `microbatch add-source "
            f"{quote(self._checkpoint)} {quote(new)}`. It reads all that it is asked for: rows that are in the sink "
            "come again, unless they are taken out before."
        )

    def _batches(self, table: T, held: HeldRanges) -> Batches:
        live = held.get(LIVE, ())
        shown = self._shown(table, live)
        return [(one.key, start, end) for one, (start, end) in zip(live, shown, strict=True)]

    def _shown(self, table: T, ranges: Sequence[HeldRange | CommittedRange]) -> list[tuple[Moment, Moment]]:
        """Start and end of each range, by the column's own clock. A claim has a position by hand so, whatever zone the
        user wrote: by the text as it is, rows between the two would be in no batch, or in two."""
        now, places = table.identity(), dict[Offset | None, Moment]()
        for offset in {offset for one in ranges for offset in (one.start, one.end)}:
            place = self._place(offset)
            places[offset] = table.exact(place) if place.by_hand else by_times(place, now)
        return [(places[one.start], places[one.end]) for one in ranges]

    def check(self) -> None:
        with self._timed() as table:
            table.check()
            self._check_exact(table)

    def initial_offset(self) -> Offset | None:
        return Moment().text()

    def known_as(self, start: Offset | None, end: Offset | None) -> str | None:
        """Return a digest of the table, and of the rows as their place tells them."""
        if end is None or end == start:
            return digest_of_range(self._source.location(), self._source.timestamp, [])
        place = self._place(end)
        if place.made is None:
            return None
        parts = (self._source.timestamp, self._key(place), place.made.oid, place.rows, place.digest)
        return digest_of_range(self._source.location(), *parts)

    def _planned_rows(self, end: Offset | None) -> int:
        return self._place(end).rows

    def _lost(self, gone: int, end: Offset | None) -> str:
        return (
            f"{gone:,} of {self._place(end).rows:,} rows that were planned are gone from {self._source.table}, or were "
            f"changed since: a changed row comes again, by a later batch, if its {self._source.timestamp!r} was set. "
            "on_missing='skip' goes on without them, and the batch says what it lacks."
        )

    def _parted(self, table: T, whole: str, *, time: str) -> list[str]:
        """Conditions that together are one: each has the rows of some timestamps.

        :param time: the column as SQL has it.
        """
        bounds = table.bounds(whole, self._source.partitions) if self._source.partitions > 1 else []
        spans = zip([None, *bounds], [*bounds, None], strict=True)
        return [
            " AND ".join(
                [whole, *([f"{time} > '{first}'"] if first else []), *([f"{time} <= '{last}'"] if last else [])]
            )
            for first, last in spans
        ]

    def _place(self, offset: Offset | None) -> Moment:
        try:
            return Moment() if offset is None else Moment.of(offset)
        except ValueError as error:
            raise SourceError(f"source {self._name!r}: {error}") from error


def _began_before(live: Sequence[Had], spans: Sequence[Piece]) -> bool:
    """Whether the live lane has begun before these times."""
    begun = (micros(one.after.time) for one in live)
    return any(at is None or at < spans[0][0] for at in begun)


def _is_by_other_time(interval: Moment, now: Made) -> bool:
    """Whether an interval's times are of another column: they tell nothing of which rows it had."""
    return interval.made is not None and interval.made.is_by_other_time(now)


def _latest(interval: Moment) -> int:
    """The time of the last row of an interval's batch, microseconds; as far as is known, where an older version has
    planned it."""
    found = micros(interval.time)
    return interval.spans[-1][1] - 1 if found is None else found
