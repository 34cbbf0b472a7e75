"""A table that is read by an incrementing column, whose missed numbers an offset lists, opened for its checkpoint."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources import UNLIMITED, Figures, ReadLimit, digest_of_range
from airflow_provider_microbatch.sources.jdbc.offset import NOT_TAKEN, Gap, Place, Table, as_taken
from airflow_provider_microbatch.sources.jdbc.opened import LAG_SECONDS, MOST_COUNTED, OpenTable
from airflow_provider_microbatch.sources.pieces import without

MOST_GAPS = 5000
"""More gaps would make entries of the offset log too large."""

_HIGHEST = 2**63 - 2


class Numbers(Protocol):
    """The numbers of a table at one moment."""

    def check(self) -> None:
        """:raises SourceError: if the column does not have whole numbers, or the table cannot be read by them."""

    def inexact(self, *, texts: Sequence[str]) -> list[str]:
        """Columns that Spark cannot carry exactly."""

    def identity(self) -> Table:
        """The identity of the table."""

    def moment(self) -> tuple[int, int]:
        """The time, milliseconds since the epoch; and the first transaction that runs."""

    def bound(self) -> int:
        """What every transaction lies before that had begun: one that may still commit a number that is missing now."""

    def any_after(self, number: int) -> bool:
        """Whether there is a row behind ``number``."""

    def last(self, after: int, most: int | None) -> int:
        """The highest number behind ``after``, of the first ``most`` rows if there is a limit; ``after`` if there is
        none."""

    def highest(self, first: int) -> int | None:
        """The highest number of all rows from ``first`` on; None if there is none."""

    def given(self) -> int | None:
        """The number that the database assigned last; None if that is unknown."""

    def missing(self, first: int, last: int, *, most: int | None = None) -> list[tuple[int, int]]:
        """First and last of the missing numbers from ``first`` to ``last``, both included; of the first ``most`` gaps
        if there is a limit."""

    def filled(self, spans: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        """The spans that contain a row."""

    def count(self, spans: Sequence[tuple[int, int]], *, most: int | None = None) -> int:
        """Number of rows in the spans, or ``most`` if there are more."""


N = TypeVar("N", bound=Numbers)


class OpenNumbered(OpenTable, Generic[N]):
    """Offsets are :class:`~airflow_provider_microbatch.sources.jdbc.offset.Place` as JSON."""

    @abstractmethod
    def _snapshot(self, *, begin: Place | None = None, seconds: float | None = None) -> AbstractContextManager[N]:
        """Open the table as it is at one moment.

        :param begin: the start of a range that is planned, for which the transactions that run have to be known.
        :param seconds: the longest time that a statement may take; None for no limit. Not with ``begin``.
        """

    @abstractmethod
    def _next(self, table: N, begin: Place, most: int | None) -> Place | None:
        """Return the end of the next range; None if there is nothing."""

    @property
    @abstractmethod
    def _column(self) -> str:
        """The column as SQL has it."""

    @abstractmethod
    def _made_again(self, then: Table, now: Table) -> str:
        """What differs, where a table of the same name and database is another one."""

    @abstractmethod
    def _same_rows(self) -> str:
        """By what another table may have the same rows."""

    def check(self) -> None:
        with self._snapshot() as table:
            table.check()
            self._check_exact(table)

    def initial_offset(self) -> Offset | None:
        return Place(number=self._source.first - 1).text()

    def has_new(self, position: Offset | None) -> bool:
        place = self._place(position)
        with self._snapshot() as table:
            self._check_goes_on(table, place)
            found = self._is_new(table, place)
            if found:  # no sensor fires for what a plan refuses
                table.check()
                self._check_exact(table)
            return found

    def latest_offset(self, start: Offset | None, limit: ReadLimit = UNLIMITED) -> Offset | None:
        begin = self._place(start)
        with self._snapshot(begin=begin) as table:
            table.check()
            self._check_exact(table)
            self._check_goes_on(table, begin)
            end = self._next(table, begin, self._most(limit))
        return start if end is None else end.text()

    def known_as(self, start: Offset | None, end: Offset | None) -> str | None:
        """Return a digest of the table's name and identity, and of the numbers."""
        place = None if end is None else self._place(end)
        spans = [] if place is None else place.spans(self._place(start).number)
        of = [] if place is None or place.table is None else [[place.table.oid, place.table.sequence]]
        return digest_of_range(self._source.location(), self._source.column, spans, *of)

    def check_offset(self, offset: Offset) -> None:
        place = self._place(offset)
        if not place.has_numbers_once:
            raise SourceError(
                f"{offset:.200} is no place in a table: its gaps are not in order, each up to the next one at most, "
                "and the last one up to n."
            )
        with self._snapshot() as table:
            if place.number > table.last(self._source.first - 1, None):
                raise SourceError(f"{offset} lies behind the last row of {self._source.table}.")

    def is_after(self, offset: Offset | None, other: Offset | None) -> bool | None:
        one, two = self._place(offset), self._place(other)
        if one.by_hand != two.by_hand:
            written, read = (one, two) if one.by_hand else (two, one)
            with self._snapshot() as table:
                now, is_other = table.identity(), self._other(table, read) is not None
                if is_other and not self._has_read_rows(read, now):
                    return written is one  # positions in another table lie before all of the current one
                if (read.table is not None and read.table.is_by_others(now)) or self._untold(table, read) is not None:
                    return None  # some of its rows have been read, and nobody knows which
        return one.number > two.number if one.number != two.number or offset == other else one.waits_for_less(two)

    def lag(self, position: Offset | None) -> Figures:
        """Rows, counted up to :data:`MOST_COUNTED`."""
        place = self._place(position)
        spans = [(gap.first, gap.last) for gap in place.gaps]
        with self._snapshot(seconds=LAG_SECONDS) as table:
            self._check_goes_on(table, place)
            late = self._late_rows(table, place)
            return Figures(rows=late + table.count([*spans, (place.number + 1, _HIGHEST)], most=MOST_COUNTED - late))

    def _late_rows(self, table: N, place: Place) -> int:
        """Number of rows that came late and are in no listed gap, counted up to :data:`MOST_COUNTED`."""
        return 0

    def _is_new(self, table: N, place: Place) -> bool:
        """Whether there is a row behind a place, or in one of its gaps."""
        return table.any_after(place.number) or bool(table.filled([(gap.first, gap.last) for gap in place.gaps]))

    def _planned(self, table: N, begin: Place, most: int | None) -> Place | None:
        """Return the end of the next range; None if there is nothing. An end with more than :data:`MOST_GAPS` gaps may
        lack further ones, and has no number of rows."""
        now_ms, xmin = table.moment()
        filled = table.filled([(gap.first, gap.last) for gap in begin.gaps])
        number = table.last(begin.number, most)
        if not filled and number == begin.number:
            return None
        waited: list[Gap] = []
        new: list[Gap] = []
        late: list[tuple[int, int]] = []
        for gap in begin.gaps:
            if (gap.first, gap.last) not in filled:
                left = [gap]
            else:
                left = [replace(gap, first=one, last=other) for one, other in table.missing(gap.first, gap.last)]
                late += _between(gap.first, gap.last, left)
            waited += left
        if number > begin.number:
            missing = table.missing(begin.number + 1, number, most=MOST_GAPS + 1)
            new = [Gap(first=one, last=other, seen_ms=now_ms, xmax=NOT_TAKEN) for one, other in missing]
        given = given_by(table, number) if waited or new else None
        bound = table.bound() if any(gap.xmax == NOT_TAKEN for gap in (*waited, *new)) else 0
        wait_ms = 1000 * self._source.late_seconds
        gaps = [
            gap
            for gap in as_taken(waited, new, given=given, now_ms=now_ms, bound=bound)
            # Else every transaction that took one of the numbers has ended, and no other will get one of them.
            if gap.xmax > xmin or now_ms - gap.seen_ms < wait_ms
        ]
        end = Place(number=number, gaps=tuple(gaps), late=tuple(late), table=table.identity())
        return end if len(gaps) > MOST_GAPS else replace(end, rows=table.count(end.spans(begin.number)))

    def _check_goes_on(self, table: N, place: Place) -> None:
        """Check that it is the same table: one that was created again, or emptied with its sequence, has other rows
        under the same numbers."""
        other = self._other(table, place) or self._untold(table, place)
        if other is not None:
            raise SourceError(other)

    def _untold(self, table: N, place: Place) -> str | None:
        """The reason why the rows of a place, of the same table, cannot be told from the others of the table; None if
        they can, as far as is known."""
        highest = table.highest(self._source.first)
        if highest is None or highest >= place.number:
            return None
        given = table.given()
        if given is not None and given >= place.number:
            return None
        return (
            f"{self._source.table} begins again, or has lost its newest rows: its highest {self._source.column!r} "
            f"is {highest}, and was read up to {place.number}. What is there now cannot be told from what was "
            f"read. {self._ways(table, place, highest)}"
        )

    def _ways(self, table: N, place: Place, highest: int | None) -> str:
        begin = self._source.first - 1
        here = begin if highest is None else min(place.number, highest)
        return (
            "Where its rows are to be read from the first, also those that were read: "
            f"`{self._to(begin, reread=True)}`, or a source of another name. Where what lies at {here} or before was "
            f"read, and what was committed late may be passed over: {self._on(table, place, here, reread=True)}."
        )

    def _on(self, table: N, place: Place, number: int, *, reread: bool) -> str:
        """The command that goes on behind a number of the current table, whose rows up to there a place has read; or
        why there is none. It waits for each number that the place waits for because no transaction had taken it: once
        that is given, its row would be lost."""
        then, gaps = place.table, []
        for gap in place.gaps:
            # Transactions of another database have other ids: none of that time can still commit into this one. What
            # none had taken is yet to come in this one as in the other.
            is_past = gap.xmax != NOT_TAKEN and then is not None and not then.is_same_table(table.identity())
            if gap.first <= number:
                gaps.append(replace(gap, last=min(gap.last, number), xmax=0 if is_past else gap.xmax))
        return f"`{self._to(number, gaps, reread=reread)}`"

    def _to(self, number: int, gaps: Sequence[Gap] = (), *, reread: bool) -> str:
        """The command that goes on behind a number of the current table."""
        place = Place(number=number, gaps=tuple(gaps), by_hand=True)
        return self._set_offset(place.text(), skip=True, reread=reread)

    def _other(self, table: N, place: Place) -> str | None:
        """The reason why the numbers of a place are not those of the current table; None if they are, as far as is
        known."""
        now, then = table.identity(), place.table
        if then is None:
            return None
        differs = then.cluster.differs(now.cluster)
        what = then.elsewhere(now)
        if differs is None and what is None and (then.oid, then.sequence) == (now.oid, now.sequence):
            return None
        # Of a table whose rows were read the same position only passes over rows, unless it is one by other columns.
        here, begin = (
            self._on(table, place, place.number, reread=then.is_by_others(now)),
            self._to(self._source.first - 1, reread=self._has_read_rows(place, now)),
        )
        made = self._made_again(then, now)
        if then.is_by_others(now):
            # The number of one column is any number of another: behind it rows would be lost, and others doubled.
            return (
                f"{what} ({made}): numbers of one column tell nothing of another. Where the column was merely renamed, "
                f"or has the values that the other had: {here}. Where its rows are to be read from the first, also "
                f"those that were read: `{begin}`, or a source of another name."
            )
        if what is None and differs is not None:
            what = f"{now.name} is not as it was: {differs}"
        elif what is None and self._has_read_rows(place, now):
            what = f"the column of {now.name} owns {'no' if now.sequence is None else 'a'} sequence by now"
        elif what is None:
            what = f"{now.name} was made again, or its sequence begins again"
        return (
            f"{what} ({made}): its rows up to {place.number} would count as read. Where they are to be read: `{begin}`"
            f", or a new checkpoint. Where they are the same rows ({self._same_rows()}): {here}."
        )

    def _has_read_rows(self, place: Place, now: Table) -> bool:
        """Whether the current table has rows that were read up to a place, as far as is known. Each column has a
        sequence of its own. One that was merely taken from it, or given to it, does not begin again: only another file
        tells that."""
        then = place.table
        if then is None or not then.is_same_table(now):
            return False
        return then.is_by_others(now) or then.sequence == now.sequence or None in (then.sequence, now.sequence)

    def _planned_rows(self, end: Offset | None) -> int:
        return self._place(end).rows

    def _there(self, start: Offset | None, end: Offset | None) -> int | str:
        place = self._place(end)
        with self._snapshot() as table:
            other = self._other(table, place)
            return table.count(place.spans(self._place(start).number)) if other is None else other

    def _between(self, start: Offset | None, end: Offset | None) -> int | str:
        begin, place = self._place(start), self._place(end)
        with self._snapshot() as table:
            other = self._other(table, place)
            if other is not None:
                return other
            # Rows that came late lie behind ``start`` too, or in its gaps, but for those that ``end`` waits for.
            waited, waits = ([(gap.first, gap.last + 1) for gap in one.gaps] for one in (begin, place))
            gaps = [(first, behind - 1) for first, behind in without(waited, waits)]
            spans = [*gaps, *replace(place, late=()).spans(begin.number)]
            return self._late_rows(table, begin) + (table.count(spans) if spans else 0)

    def _predicates(self, start: Offset | None, end: Offset | None) -> list[str]:
        return self._place(end).conditions(self._place(start), self._column, self._source.partitions)

    def _place(self, offset: Offset | None) -> Place:
        try:
            return Place.of(self.initial_offset() or "" if offset is None else offset)
        except ValueError as error:
            raise SourceError(f"source {self._name!r}: {error}") from error


def given_by(table: Numbers, last: int) -> int | None:
    """The number that the database assigned last, or ``last`` where the column owns no sequence any more: what it was
    yet to give counts as taken, since nobody would ever learn that it is. None if there is a sequence that tells
    nothing."""
    given = table.given()
    return last if given is None and table.identity().sequence is None else given


def _between(first: int, last: int, left: list[Gap]) -> list[tuple[int, int]]:
    """Return the part of a span that is in none of its remaining gaps."""
    return Place(number=last, gaps=tuple(left)).spans(first - 1)
