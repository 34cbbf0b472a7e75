"""A PostgreSQL table that is read by an incrementing column, opened for its checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources import UNLIMITED, Figures, ReadLimit, digest_of_range
from airflow_provider_microbatch.sources.jdbc.offset import Gap, Place
from airflow_provider_microbatch.sources.jdbc.opened import LAG_SECONDS, MOST_COUNTED, OpenTable
from airflow_provider_microbatch.sources.jdbc.session import quoted_column
from airflow_provider_microbatch.sources.jdbc.sparse import Mark, Sparse, joined, spans_of
from airflow_provider_microbatch.sources.jdbc.table import Snapshot, snapshot

MOST_GAPS = 5000
"""More gaps would make entries of the offset log too large: beyond this, transactions tell which rows were read."""

_HIGHEST = 2**63 - 2


class OpenJdbcSource(OpenTable):
    """Offsets are :class:`~airflow_provider_microbatch.sources.jdbc.offset.Place` as JSON."""

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
            found = (
                table.any_after(place.number)
                or bool(table.filled([(gap.first, gap.last) for gap in place.gaps]))
                or (place.sparse is not None and table.any(self._late(place)))
            )
            if found:  # no sensor fires for what a plan refuses
                self._check_exact(table)
            return found

    def latest_offset(self, start: Offset | None, limit: ReadLimit = UNLIMITED) -> Offset | None:
        begin = self._place(start)
        most = min((one for one in (self._source.max_rows, limit.rows) if one is not None), default=None)
        with self._snapshot(plans=True) as table:
            self._check_exact(table)
            self._check_goes_on(table, begin)
            end = self._planned(table, begin, most) if begin.sparse is None else self._by_marks(table, begin, most)
            if end is not None and len(end.gaps) > MOST_GAPS:
                end = self._unlisted(table, begin, end)
        return start if end is None else end.text()

    def known_as(self, start: Offset | None, end: Offset | None) -> str | None:
        """Return a digest of the table's name and identity, and of the numbers."""
        place = None if end is None else self._place(end)
        if place is not None and place.sparse is not None and end != start:
            made = None if place.table is None else place.table.oid
            return digest_of_range(self._source.location(), self._source.column, place.rows, place.sparse.digest, made)
        spans = [] if place is None else place.spans(self._place(start).number)
        of = [] if place is None or place.table is None else [[place.table.oid, place.table.sequence]]
        return digest_of_range(self._source.location(), self._source.column, spans, *of)

    def check_offset(self, offset: Offset) -> None:
        place = self._place(offset)
        with self._snapshot() as table:
            if place.number > table.last(self._source.first - 1, None):
                raise SourceError(f"{offset} lies behind the last row of {self._source.table}.")

    def is_after(self, offset: Offset | None, other: Offset | None) -> bool | None:
        one, two = self._place(offset), self._place(other)
        if one.by_hand != two.by_hand:
            written, read = (one, two) if one.by_hand else (two, one)
            with self._snapshot() as table:
                # No row of the current table has been read: positions in another table lie before all of it.
                if self._other(table, read) is not None:
                    return written is one
                if self._untold(table, read) is not None:
                    return None  # some of its rows have been read, and nobody knows which
        return None if one.number == two.number and offset != other else one.number > two.number

    def lag(self, position: Offset | None) -> Figures:
        """Rows, counted up to :data:`MOST_COUNTED`."""
        place = self._place(position)
        spans = [(gap.first, gap.last) for gap in place.gaps]
        with self._snapshot(seconds=LAG_SECONDS) as table:
            self._check_goes_on(table, place)
            late = 0 if place.sparse is None else table.count_of(self._late(place), most=MOST_COUNTED)
            return Figures(rows=late + table.count([*spans, (place.number + 1, _HIGHEST)], most=MOST_COUNTED - late))

    def _planned(self, table: Snapshot, begin: Place, most: int | None) -> Place | None:
        """Return the end of the next range; None if there is nothing."""
        now_ms, xmin, xmax = table.moment()
        filled = table.filled([(gap.first, gap.last) for gap in begin.gaps])
        number = table.last(begin.number, most)
        if not filled and number == begin.number:
            return None
        gaps: list[Gap] = []
        late: list[tuple[int, int]] = []
        for gap in begin.gaps:
            if (gap.first, gap.last) not in filled:
                left = [gap]
            else:
                left = [replace(gap, first=one, last=other) for one, other in table.missing(gap.first, gap.last)]
                late += _between(gap.first, gap.last, left)
            # Every transaction that took one of the numbers has ended, and no other will get one of them.
            over = gap.xmax <= xmin and now_ms - gap.seen_ms >= 1000 * self._source.late_seconds
            gaps += [] if over else left
        if number > begin.number:
            missing = table.missing(begin.number + 1, number)
            gaps += [Gap(first=one, last=other, seen_ms=now_ms, xmax=xmax) for one, other in missing]
        end = Place(number=number, gaps=tuple(gaps), late=tuple(late), table=table.identity())
        return replace(end, rows=table.count(end.spans(begin.number)))

    def _unlisted(self, table: Snapshot, begin: Place, end: Place) -> Place:
        """Return the end of the same range in the sparse form, since its gaps are too many to be listed."""
        now_ms, _, xmax = table.moment()
        mark = Mark(first=end.gaps[0].first, seen_ms=now_ms, xmax=xmax)
        return self._by_transactions(table, begin, replace(end, gaps=()), since=mark.first, marks=[mark])

    def _by_marks(self, table: Snapshot, begin: Place, most: int | None) -> Place | None:
        """Return the end of the next range, where transactions tell which rows were read; None if there is nothing."""
        now_ms, xmin, xmax = table.moment()
        marks = [] if begin.sparse is None else list(begin.sparse.marks)
        number = table.last(begin.number, most)
        if number == begin.number and not table.any(self._late(begin)):
            return None
        since = marks[0].first if marks else begin.number + 1
        wait_ms = 1000 * self._source.late_seconds
        # Only marks at the front are removed: a mark tells where its numbers begin, and the next mark where they end.
        while marks and marks[0].xmax <= xmin and now_ms - marks[0].seen_ms >= wait_ms:
            del marks[0]
        if number > begin.number:
            marks.append(Mark(first=begin.number + 1, seen_ms=now_ms, xmax=xmax))
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

    def _check_goes_on(self, table: Snapshot, place: Place) -> None:
        """Check that it is the same table: one that was created again, or emptied with its sequence, has other rows
        under the same numbers."""
        other = self._other(table, place) or self._untold(table, place)
        if other is not None:
            raise SourceError(other)

    def _untold(self, table: Snapshot, place: Place) -> str | None:
        """The reason why the rows of a place, of the same table, cannot be told from the others of the table; None if
        they can, as far as is known."""
        sparse, highest = place.sparse, table.highest(self._source.first)
        if sparse is not None and table.below() < sparse.below:
            return (
                f"the database is at transaction {table.below()}, and was read up to {sparse.below}: it was restored "
                f"to an earlier time, or is another one. {self._ways(place, highest)}"
            )
        if sparse is not None and self._is_written_anew(table, place, sparse):
            return (
                f"{self._source.table} was written anew (ALTER TABLE that changes a type): what was read of its last "
                f"rows cannot be told from what was not. {self._ways(place, highest)}"
            )
        if highest is None or highest >= place.number:
            return None
        given = table.given()
        if given is not None and given >= place.number:
            return None
        return (
            f"{self._source.table} begins again, or has lost its newest rows: its highest {self._source.column!r} "
            f"is {highest}, and was read up to {place.number}. What is there now cannot be told from what was "
            f"read. {self._ways(place, highest)}"
        )

    def _is_written_anew(self, table: Snapshot, place: Place, sparse: Sparse) -> bool:
        """Whether the rows have other transactions than those by which they are known."""
        seen = f"{self._column} BETWEEN {sparse.waited_from} AND {place.number} AND {sparse.seen}"
        is_new = sparse.waited_from is not None and table.file() != sparse.file
        return is_new and table.any(self._late(place)) and not table.any(seen)

    def _ways(self, place: Place, highest: int | None) -> str:
        begin = self._source.first - 1
        here = begin if highest is None else min(place.number, highest)
        gaps = [gap for gap in place.gaps if gap.last <= here]
        return (
            "Where its rows are to be read from the first, also those that were read: "
            f"`{self._to(begin, reread=True)}`, or a source of another name. Where what lies at {here} or before was "
            f"read: `{self._to(here, gaps, reread=True)}`, which passes over what was committed late."
        )

    def _to(self, number: int, gaps: Sequence[Gap] = (), *, reread: bool = False) -> str:
        """The command that goes on behind a number of the current table."""
        place = Place(number=number, gaps=tuple(gaps), by_hand=True)
        return self._set_offset(place.text(), skip=True, reread=reread)

    def _other(self, table: Snapshot, place: Place) -> str | None:
        """The reason why the numbers of a place are not those of the current table; None if they are, as far as is
        known."""
        now, then = table.identity(), place.table
        if then is None:
            return None
        differs = then.cluster.differs(now.cluster)
        if differs is None and (then.name, then.oid, then.sequence) == (now.name, now.oid, now.sequence):
            return None
        # Transactions of another database have other ids: no transaction of that time can still commit into this one.
        is_same = then.oid == now.oid and differs is None
        gaps = place.gaps if is_same else tuple(replace(gap, xmax=0) for gap in place.gaps)
        here, begin = self._to(place.number, gaps), self._to(self._source.first - 1)
        if then.name != now.name:
            what = f"the position is one of table {then.name}, and {now.name} is read now"
        elif differs is not None:
            what = f"{now.name} is not as it was: {differs}"
        else:
            what = f"{now.name} was made again, or its sequence begins again"
        return (
            f"{what} (oid {then.oid} and sequence file {then.sequence} then, {now.oid} and {now.sequence} now): its "
            f"rows up to {place.number} would count as read. Where they are to be read: `{begin}`, or a new "
            f"checkpoint. Where they are the same rows (restored by pg_restore, renamed): `{here}`."
        )

    def _planned_rows(self, end: Offset | None) -> int:
        return self._place(end).rows

    def _there(self, start: Offset | None, end: Offset | None) -> int | str:
        place = self._place(end)
        with self._snapshot() as table:
            other = self._other(table, place)
            if other is not None:
                return other
            begin, sparse = self._place(start), place.sparse
            if sparse is None:
                return table.count(place.spans(begin.number))
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

    def _predicates(self, start: Offset | None, end: Offset | None) -> list[str]:
        return self._place(end).conditions(self._place(start), self._column, self._source.partitions)

    def _place(self, offset: Offset | None) -> Place:
        try:
            return Place.of(self.initial_offset() or "" if offset is None else offset)
        except ValueError as error:
            raise SourceError(f"source {self._name!r}: {error}") from error

    @contextmanager
    def _snapshot(self, *, plans: bool = False, seconds: float | None = None) -> Iterator[Snapshot]:
        source, connection = self._source, self._connect(self._source.conn_id)
        opened = snapshot(connection, table=source.table, column=source.column or "", plans=plans, seconds=seconds)
        with self._named(), opened as table:
            yield table


def _between(first: int, last: int, left: list[Gap]) -> list[tuple[int, int]]:
    """Return the part of a span that is in none of its remaining gaps."""
    return Place(number=last, gaps=tuple(left)).spans(first - 1)
