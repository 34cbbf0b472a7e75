"""A PostgreSQL table that is read by a column of timestamps, opened for its checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources import Figures, ReadLimit
from airflow_provider_microbatch.sources.jdbc.access import Access
from airflow_provider_microbatch.sources.jdbc.by_others import ways_by_others
from airflow_provider_microbatch.sources.jdbc.moment import FIRST, Had, Made, Moment, Running
from airflow_provider_microbatch.sources.jdbc.opened import LAG_SECONDS, MOST_COUNTED
from airflow_provider_microbatch.sources.jdbc.relation import WRITTEN_BY
from airflow_provider_microbatch.sources.jdbc.session import access
from airflow_provider_microbatch.sources.jdbc.taken import Found
from airflow_provider_microbatch.sources.jdbc.timed import OpenTimed
from airflow_provider_microbatch.sources.jdbc.timed_table import TimedTable, timed
from airflow_provider_microbatch.sources.jdbc.transactions import Ended
from airflow_provider_microbatch.sources.pieces import Piece

MOST_RUNNING = 5000
"""A larger number of spans would make entries of the offset log too large."""

_TICK_SECONDS = 0.000001
"""PostgreSQL has times to the microsecond."""


class OpenTimedTable(OpenTimed[TimedTable]):
    """Of a row its transaction tells whether it was read."""

    def has_new(self, position: Offset | None) -> bool:
        place, taken = self._place(position), self._taken.find()
        with self._timed(found=taken) as table:
            place = table.exact(place) if place.by_hand else place
            self._check_goes_on(table, place)
            ranges = table.ranges
            found = table.any(ranges.ahead(place, table.now), ranges.late(place, self._since(table, place)))
            if found:  # no sensor fires for what a plan refuses
                table.check()
                self._check_exact(table)
                self._check_none_behind(table, place, taken)
            return found

    def _next(self, start: Offset | None, limit: ReadLimit, found: Found) -> tuple[Moment, Moment] | None:
        place = self._place(start)
        with self._timed(begin=place, found=found) as table:
            table.check()
            self._check_exact(table)
            begin = table.exact(place)
            self._check_goes_on(table, begin)
            end = self._planned(table, begin, self._most(limit))
            if end is None:
                return None
            self._check_none_behind(table, begin, found)
        return begin, end

    def check_offset(self, offset: Offset) -> None:
        place = self._place(offset)
        if place.time is None:
            return
        with self._timed() as table:
            if table.is_to_come(place.time):
                raise SourceError(f"{offset} lies in the future of the database's clock.")

    def is_after(self, offset: Offset | None, other: Offset | None) -> bool | None:
        one, two = self._place(offset), self._place(other)
        with self._timed() as table:
            if (one.below is None) != (two.below is None):
                written, read = (one, two) if one.below is None else (two, one)
                now = table.identity()
                is_other = self._other(read, now) is not None
                if is_other and not read.has_rows_of(now):
                    return written is one  # positions in another table lie before all of the current one
                if is_other or self._untold(table, read, now) is not None:
                    return None  # some of its rows have been read, and nobody knows which
            if one.time is None or two.time is None:
                return one.time is not None and two.time is None
            order = table.compared(one.time, two.time)
        if order or one.key != two.key:
            after = (one.key is None, one.key or 0) > (two.key is None, two.key or 0)  # None: all rows of that time
            return order > 0 if order else after
        if one.below == two.below:
            return False if offset == other else None
        return None if one.below is None or two.below is None else one.below > two.below

    def lag(self, position: Offset | None) -> Figures:
        """Rows, counted up to :data:`MOST_COUNTED`."""
        place = self._place(position)
        with self._timed(seconds=LAG_SECONDS) as table:
            place = table.exact(place) if place.by_hand else place
            self._check_goes_on(table, place)
            ranges = table.ranges
            late = ranges.late(place, self._since(table, place))
            return Figures(rows=table.count_of(f"({ranges.ahead(place, table.now)}) OR ({late})", most=MOST_COUNTED))

    def not_read(self) -> str | None:
        with self._timed() as table:
            without = table.count_of(f"{table.ranges.time} IS NULL OR NOT isfinite({table.ranges.time})")
        if not without:
            return None
        return (
            f"{without:,} rows of {self._source.table} have no {self._source.timestamp!r}, or an infinite one, and are "
            "not read as long as they have not. Give them one."
        )

    def _planned(self, table: TimedTable, begin: Moment, most: int | None) -> Moment | None:
        """Return the end of the next range; None if there is nothing."""
        ranges, since = table.ranges, self._since(table, begin)
        late = table.count_of(ranges.late(begin, since))
        room = None if most is None else most - late
        found = None if room is not None and room < 1 else table.last(ranges.ahead(begin, table.now), room)
        if found is None and not late:
            return None
        time, key = (begin.time, begin.key) if found is None else found
        behind = len(ranges.intervals)
        end = Moment(time=time, key=key, below=table.below(), since=since, made=table.identity(), behind=behind)
        # Before the first batch nothing of theirs is read, however old it is.
        new = FIRST if begin.time is None else table.earlier(begin.time, self._source.late_seconds)
        rows, digest = table.rows(ranges.between(begin, end, replayed=False))
        running = (*self._running(table, end, begin, new), *table.newest(end, new))
        return replace(end, running=running, rows=rows, digest=digest)

    def _running(self, table: TimedTable, end: Moment, start: Moment, since: str) -> tuple[Running, ...]:
        """The result of :meth:`TimedTable.running`.

        :raises SourceError: if an entry cannot hold it.
        """
        running = tuple(table.running(end, start, since))
        if len(running) > MOST_RUNNING:
            raise SourceError(
                f"{len(running):,} transactions and subtransactions run beside each other, more than {MOST_RUNNING:,} "
                "spans of ids, and their rows cannot be waited for one by one. Nothing is lost: wait for them to end."
            )
        return running

    def _seen(self, table: TimedTable) -> tuple[Moment, int | None]:
        return Moment(below=table.below()), None

    def _told_apart(self, table: TimedTable, end: Moment) -> Moment:
        return replace(end, running=self._running(table, end, Moment(), FIRST))

    def _anew(self, table: TimedTable, had: Sequence[Had], spans: Sequence[Piece]) -> str | None:
        below, now, ranges = table.below(), table.identity(), table.ranges
        asked = ranges.up_to(Moment(spans=tuple(spans)))
        for one in had:
            place = one.end
            if place.below is not None and below < place.below:
                return (
                    f"The database is at transaction {below}, and lanes have read up to {place.below}: it was restored "
                    "to an earlier time, or is another one."
                )
            if place.made is None or now.file == place.made.file:
                continue
            whole = f"isfinite({ranges.time}) AND {ranges.began(one)} AND {ranges.up_to(place)}"
            seen, unseen = (f"{whole} AND {word}({ranges.seen(place)})" for word in ("", "NOT "))
            if table.is_written_anew(unseen=f"{unseen} AND {asked}", seen=seen, before=ranges.seen(place)):
                return f"{self._source.table}, or a partition of it, was written anew ({WRITTEN_BY})."
        return None

    def _since(self, table: TimedTable, start: Moment) -> str | None:
        """Return the timestamp from which the next batch looks for rows behind a position that were committed after it
        was planned. Never before the timestamp of the previous batch, whatever late_seconds was then: earlier rows were
        read, and cannot be distinguished from unread ones."""
        if start.time is None:
            return None
        if start.below is None:
            if start.key is not None and table.ranges.key is not None:
                return start.time
            # Rows of the very time of a position by hand count as read, and are free for data intervals.
            return table.earlier(start.time, -_TICK_SECONDS)
        wanted = [table.earlier(start.time, self._source.late_seconds), *(one.since for one in start.running)]
        since = table.earliest(wanted)
        if start.since is not None and table.compared(since, start.since) < 0:
            return start.since
        return since

    def _check_goes_on(self, table: TimedTable, place: Moment) -> None:
        """Check that the table is still the same: only then its transactions tell which of its rows were read."""
        if place.made is None or place.below is None:
            return
        now = table.identity()
        other = self._other(place, now) or self._untold(table, place, now)
        if other is not None:
            raise SourceError(other)

    def _untold(self, table: TimedTable, place: Moment, now: Made) -> str | None:
        """The reason why the rows of a place, of the same table, cannot be told from the others of the table; None if
        they can, as far as is known."""
        if place.made is None or place.below is None:
            return None
        if table.below() < place.below:
            return (
                f"the database is at transaction {table.below()}, and was read up to {place.below}: it was restored to "
                f"an earlier time, or is another one. {self._ways(place, reread=True)}"
            )
        if now.file == place.made.file:
            return None
        ranges, since = table.ranges, self._since(table, place)
        bound = "true" if since is None else f"{ranges.time} >= '{since}'"
        seen = f"isfinite({ranges.time}) AND {ranges.up_to(place)} AND {ranges.seen(place)} AND {bound}"
        if not table.is_written_anew(unseen=ranges.late(place, since), seen=seen, before=ranges.seen(place)):
            return None
        return (
            f"{self._source.table}, or a partition of it, was written anew ({WRITTEN_BY}): what was read of its last "
            f"rows cannot be told from what was not. {self._ways(place, reread=True)}"
        )

    def _other(self, place: Moment, now: Made) -> str | None:
        """The reason why a place does not belong to the current table; None if it does, as far as can be known."""
        then = place.made
        if then is None or place.spans:
            return self._other_than(place, now)
        what = then.elsewhere(now)
        if what is None and then.oid != now.oid:
            what = f"{now.name} was made again"
        elif what is None:
            differs = then.cluster.differs(now.cluster)
            if differs is None:
                return None
            what = f"{now.name} is not as it was: {differs}"
        what = f"{what} (oid {then.oid} then, {now.oid} now)."
        if then.is_by_others(now):
            return f"{what} {ways_by_others(place, now, self._set_offset)} {self._new_name()}"
        return f"{what} {self._ways(place, reread=then.is_same_table(now))}"

    def _ways(self, place: Moment, *, reread: bool = False) -> str:
        begin, here = (
            self._set_offset(moment.text(), skip=True, reread=reread)
            for moment in (Moment(), replace(place, below=None))
        )
        return (
            f"Where its rows are to be read from the first: `{begin}`; where what lies before {place.time} was read: "
            f"`{here}`, which passes over what was committed late."
        )

    def _there(self, start: Offset | None, end: Offset | None) -> int | str:
        begin, place = self._place(start), self._place(end)
        with self._timed(place=place) as table:
            now = table.identity()
            other = self._other(place, now)
            if other is not None:
                return other
            there = table.count_of(table.ranges.between(begin, place))
            if place.made is None or place.below is None:
                return there
            return self._told(
                there,
                end,
                is_rewritten=now.file != place.made.file,
                anew=partial(table.any_anew, table.ranges.times(place), since=place.below),
                later=table.below() - place.below,
            )

    def _between(self, start: Offset | None, end: Offset | None) -> int | str:
        with self._timed() as table:
            begin, place = table.exact(self._place(start)), table.exact(self._place(end))
            now = table.identity()
            other = self._other(place, now) or self._other(begin, now)
            if other is not None:
                return other
            ranges = table.ranges
            place = place.seen_now(self._since(table, begin), behind=len(ranges.intervals))
            return table.count_of(ranges.between(begin, place))

    def _predicates(self, start: Offset | None, end: Offset | None) -> list[str]:
        begin, place = self._place(start), self._place(end)
        with self._timed(place=place) as table:
            begin, place = table.exact(begin), table.exact(place)
            return self._parted(table, table.ranges.between(begin, place), time=table.ranges.time)

    def _access(self, connection: Connection) -> Access:
        return access(connection, table=self._source.table)

    @contextmanager
    def _open_table(
        self, *, key: str | None, begin: Moment | None = None, seconds: float | None = None
    ) -> Iterator[TimedTable]:
        source, ended = self._source, None
        connection = self._connect(source.conn_id)
        if begin is not None:
            ended = Ended(below=begin.below or 0, running=[(one.first, one.last) for one in begin.running])
        with (
            self._named(),
            timed(
                connection,
                table=source.table,
                time=source.timestamp or "",
                key=key,
                zone=source.time_zone,
                ended=ended,
                seconds=seconds,
            ) as table,
        ):
            yield table
