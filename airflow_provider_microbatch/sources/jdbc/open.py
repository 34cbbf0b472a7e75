"""A PostgreSQL table that is read by an incrementing column, opened for its checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.log import spans_of
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources import UNLIMITED, ReadLimit, digest_of_range
from airflow_provider_microbatch.sources.jdbc.access import Access
from airflow_provider_microbatch.sources.jdbc.numbered import MOST_GAPS, OpenNumbered, given_by
from airflow_provider_microbatch.sources.jdbc.offset import NOT_TAKEN, Gap, Place, Table, as_taken
from airflow_provider_microbatch.sources.jdbc.opened import MOST_COUNTED
from airflow_provider_microbatch.sources.jdbc.relation import WRITTEN_BY
from airflow_provider_microbatch.sources.jdbc.session import access, literal, quoted, quoted_column
from airflow_provider_microbatch.sources.jdbc.sparse import Mark, Sparse, joined
from airflow_provider_microbatch.sources.jdbc.table import Snapshot, snapshot
from airflow_provider_microbatch.sources.jdbc.transactions import Ended

log = logging.getLogger(__name__)

AHEAD_MS = 86_400_000
"""When rows have come ahead of the sequence for so long, it is not likely to come up to them."""


class OpenJdbcSource(OpenNumbered[Snapshot]):
    """Offsets are :class:`~airflow_provider_microbatch.sources.jdbc.offset.Place` as JSON."""

    def latest_offset(self, start: Offset | None, limit: ReadLimit = UNLIMITED) -> Offset | None:
        end = super().latest_offset(start, limit)
        if end != start and (why := self.waits_in_vain(end)) is not None:
            log.warning("source %s: %s", self._name, why)
        return end

    def waits_in_vain(self, position: Offset | None) -> str | None:
        """See :class:`~airflow_provider_microbatch.sources.ways_on.TellsWaiting`. One row ahead of the sequence is no
        reason: it is missed at one moment, and the sequence comes up to it."""
        place = self._place(position)
        waited = place.gaps if place.sparse is None else _waited(place.sparse.marks, place.number)
        to_come = [one for one in waited if one.xmax == NOT_TAKEN]
        missed = [one.seen_ms for one in to_come]
        if not missed or max(missed) - min(missed) < AHEAD_MS:
            return None
        name, column = self._source.table, self._source.column or ""
        # No command of a position: the pipeline goes on, and one that was copied before would go back.
        return (
            f"for {(max(missed) - min(missed)) // 86_400_000} days rows have come ahead of the sequence of {name}'s "
            f"column {column!r}, and each missing number from {to_come[0].first} on is waited for until the sequence "
            "gives it: plan and sensor ask for all rows from there on, and one of them that is updated may be read "
            "again. If the sequence fills the column no more: SELECT setval(pg_get_serial_sequence("
            f"{literal(quoted(name))}, {literal(column)}), N), where no row comes to N. If it counts blocks of "
            "numbers, and so lies behind for ever, take it from the column, so that late_seconds alone hold: "
            f"ALTER SEQUENCE … OWNED BY NONE; of an identity column ALTER TABLE {quoted(name)} ALTER COLUMN "
            f"{self._column} DROP IDENTITY, which drops the sequence: let what counts by it have another one first. "
            "The next plan is refused then, and its error has the command that goes on."
        )

    def _is_new(self, table: Snapshot, place: Place) -> bool:
        return super()._is_new(table, place) or (place.sparse is not None and table.any(self._late(place)))

    def _next(self, table: Snapshot, begin: Place, most: int | None) -> Place | None:
        if begin.sparse is not None:
            return self._by_marks(table, begin, most)
        end = self._planned(table, begin, most)
        if end is None or len(end.gaps) <= MOST_GAPS:
            return end
        # Beyond the gaps that can be listed, transactions tell which rows were read. Which of them run is asked before
        # the snapshot, and may take long: of a table whose gaps are listed nobody asks it.
        table.look_again()
        self._check_goes_on(table, begin)
        end = self._planned(table, begin, most)
        return self._unlisted(table, begin, end) if end is not None and len(end.gaps) > MOST_GAPS else end

    def known_as(self, start: Offset | None, end: Offset | None) -> str | None:
        """Return a digest of the table's name and identity, and of the numbers."""
        place = None if end is None else self._place(end)
        if place is not None and place.sparse is not None and end != start:
            made = None if place.table is None else place.table.oid
            return digest_of_range(self._source.location(), self._source.column, place.rows, place.sparse.digest, made)
        return super().known_as(start, end)

    def _late_rows(self, table: Snapshot, place: Place) -> int:
        return 0 if place.sparse is None else table.count_of(self._late(place), most=MOST_COUNTED)

    def _unlisted(self, table: Snapshot, begin: Place, end: Place) -> Place:
        """Return the end of the same range in the sparse form, since its gaps are too many to be listed."""
        now_ms, _ = table.moment()
        first = end.gaps[0].first
        new = Gap(first=first, last=end.number, seen_ms=now_ms, xmax=NOT_TAKEN)
        marks = _marks(table, [], [new], now_ms)
        return self._by_transactions(table, begin, replace(end, gaps=()), since=first, marks=marks)

    def _by_marks(self, table: Snapshot, begin: Place, most: int | None) -> Place | None:
        """Return the end of the next range, where transactions tell which rows were read; None if there is nothing."""
        now_ms, xmin = table.moment()
        marks = [] if begin.sparse is None else list(begin.sparse.marks)
        number = table.last(begin.number, most)
        if number == begin.number and not table.any(self._late(begin)):
            return None
        since = marks[0].first if marks else begin.number + 1
        waited = _waited(marks, begin.number)
        new = Gap(first=begin.number + 1, last=number, seen_ms=now_ms, xmax=NOT_TAKEN)
        marks = _marks(table, waited, [new] if number > begin.number else [], now_ms)
        wait_ms = 1000 * self._source.late_seconds
        # Only marks at the front are removed: a mark tells where its numbers begin, and the next mark where they end.
        while marks and marks[0].xmax <= xmin and now_ms - marks[0].seen_ms >= wait_ms:
            del marks[0]
        return self._by_transactions(table, begin, Place(number=number), since=since, marks=marks)

    def _by_transactions(
        self, table: Snapshot, begin: Place, end: Place, *, since: int, marks: Sequence[Mark]
    ) -> Place:
        table.check_told()
        below = table.below()
        # Over all numbers of the batch: who ended while it was planned is told from who runs by a row of it.
        lowest = min([since, begin.number + 1, *(first for first, _ in end.late)])
        running = spans_of(table.unseen(lowest, end.number, below))
        if len(running) > MOST_GAPS:
            raise SourceError(
                f"more than {MOST_GAPS:,} transactions and subtransactions run beside each other, and their rows "
                "cannot be waited for one by one. Nothing is lost: wait for them to end."
            )
        sparse = Sparse(since=since, below=below, running=running, marks=joined(marks), file=table.file(), digest="")
        end = replace(end, table=table.identity(), sparse=sparse)
        rows, digest = table.rows(end.conditions(begin, self._column, 1, replayed=False))
        return replace(end, rows=rows, sparse=replace(sparse, digest=digest))

    def _late(self, place: Place) -> str:
        """Return an SQL condition for awaited rows, where transactions tell which rows were read."""
        return place.unseen(self._column, None if place.sparse is None else place.sparse.waited_from)

    @property
    def _column(self) -> str:
        return quoted_column(self._source.column or "")

    def _untold(self, table: Snapshot, place: Place) -> str | None:
        sparse = place.sparse
        if sparse is not None and table.below() < sparse.below:
            return (
                f"the database is at transaction {table.below()}, and was read up to {sparse.below}: it was restored "
                f"to an earlier time, or is another one. {self._ways(table, place, table.highest(self._source.first))}"
            )
        if sparse is not None and self._is_written_anew(table, place, sparse):
            return (
                f"{self._source.table}, or a partition of it, was written anew ({WRITTEN_BY}): what was read of its "
                "last rows cannot be told from what was not. "
                f"{self._ways(table, place, table.highest(self._source.first))}"
            )
        return super()._untold(table, place)

    def _is_written_anew(self, table: Snapshot, place: Place, sparse: Sparse) -> bool:
        """Whether the rows have other transactions than those by which they are known."""
        seen = f"{self._column} BETWEEN {sparse.waited_from} AND {place.number} AND {sparse.seen}"
        is_new = sparse.waited_from is not None and table.file() != sparse.file
        return is_new and table.is_written_anew(unseen=self._late(place), seen=seen, before=sparse.seen)

    def _on(self, table: Snapshot, place: Place, number: int, *, reread: bool) -> str:
        sparse = place.sparse
        if sparse is None:
            return super()._on(table, place, number, reread=reread)
        is_told = self._tells_what_was_read(table, place, sparse)
        seen = sparse.seen if is_told else "true"
        waited = [one for one in _waited(sparse.marks, place.number) if one.first <= number]
        gaps = _missing(table, waited, number, among=seen) if is_told else []
        is_all = is_told and len(gaps) <= MOST_GAPS
        if not is_all:
            # What is yet to come is the last to be given up, and without a sequence there is none.
            yet = [] if table.identity().sequence is None else [one for one in waited if one.xmax == NOT_TAKEN]
            gaps = _missing(table, yet, number, among=seen)
        if len(gaps) > MOST_GAPS:
            return (
                f"no command is named, since numbers from {gaps[0].first} on are waited for until the sequence gives "
                f"them, more of them than a position lists: one at {number} without gaps passes over them all"
            )
        # Nobody can tell whether one of these numbers was read: with gaps it is no place that only passes over rows.
        may_reread = reread or (bool(gaps) and self._has_read_rows(place, table.identity()))
        on = super()._on(table, replace(place, gaps=tuple(gaps)), number, reread=may_reread)
        return on if is_all or not waited else f"{on}, which passes over what came late from {waited[0].first} on"

    def _tells_what_was_read(self, table: Snapshot, place: Place, sparse: Sparse) -> bool:
        """Whether the transactions of the rows still tell which of them were read, also where the table goes by another
        name by now, or the column does."""
        now, then = table.identity(), place.table
        return (
            then is not None
            and then.is_same_table(now)
            and then.numbers == now.numbers
            and table.below() >= sparse.below
            and not self._is_written_anew(table, place, sparse)
        )

    def _made_again(self, then: Table, now: Table) -> str:
        return f"oid {then.oid} and sequence file {then.sequence} then, {now.oid} and {now.sequence} now"

    def _same_rows(self) -> str:
        return "restored by pg_restore, renamed, ALTER SEQUENCE"

    def _there(self, start: Offset | None, end: Offset | None) -> int | str:
        place = self._place(end)
        sparse = place.sparse
        if sparse is None:
            return super()._there(start, end)
        with self._snapshot() as table:
            other = self._other(table, place)
            if other is not None:
                return other
            begin = self._place(start)
            there, _ = table.rows(place.conditions(begin, self._column, 1))
            first = min(sparse.since, begin.number + 1)
            numbers = f"{self._column} BETWEEN {first} AND {place.number}"
            return self._told(
                there,
                end,
                is_rewritten=table.file() != sparse.file,
                anew=partial(table.any_anew, numbers, since=sparse.below),
                later=table.below() - sparse.below,
            )

    def _access(self, connection: Connection) -> Access:
        return access(connection, table=self._source.table)

    @contextmanager
    def _snapshot(self, *, begin: Place | None = None, seconds: float | None = None) -> Iterator[Snapshot]:
        source, connection = self._source, self._connect(self._source.conn_id)
        known = None if begin is None else begin.sparse
        ended = None if known is None else Ended(below=known.below, running=known.running)
        opened = snapshot(connection, table=source.table, column=source.column or "", ended=ended, seconds=seconds)
        with self._named(), opened as table:
            yield table


def _waited(marks: Sequence[Mark], last: int) -> list[Gap]:
    """What the marks of a place cover, up to its number."""
    ends = [*(mark.first - 1 for mark in marks[1:]), last]
    each = zip(marks, ends, strict=False)
    return [Gap(first=mark.first, last=end, seen_ms=mark.seen_ms, xmax=mark.xmax) for mark, end in each]


def _missing(table: Snapshot, waited: Sequence[Gap], last: int, *, among: str) -> list[Gap]:
    """The missing numbers of what is waited for; where there are more gaps than can be listed, not all of them.

    :param last: up to this number.
    :param among: see :meth:`Snapshot.missing`.
    """
    found: list[Gap] = []
    for one in waited:
        if len(found) <= MOST_GAPS:
            spans = table.missing(one.first, min(one.last, last), most=MOST_GAPS + 1, among=among)
            found += [replace(one, first=first, last=end) for first, end in spans]
    return found


def _marks(table: Snapshot, waited: Sequence[Gap], new: Sequence[Gap], now_ms: int) -> list[Mark]:
    """Marks for numbers that are waited for, and lie behind one another without a space."""
    last = max([one.last for one in (*waited, *new)], default=0)
    gaps = as_taken(waited, new, given=given_by(table, last), now_ms=now_ms, bound=table.bound())
    return [Mark(first=gap.first, seen_ms=gap.seen_ms, xmax=gap.xmax) for gap in gaps]
