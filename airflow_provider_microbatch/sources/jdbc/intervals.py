"""The rows of a data interval in a table that is read by time: those that no lane has, and the batches that have the
others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sources.intervals import HeldRanges, Interval, IntervalSurvey, Unread
from airflow_provider_microbatch.sources.jdbc.moment import Had, Made, Moment, may_have
from airflow_provider_microbatch.sources.jdbc.taken import Found, Log, by_log, followed
from airflow_provider_microbatch.sources.pieces import Piece, common, joined, without

ROWS = "rows"
"""What a survey counts."""

NOTHING = "1 = 0"
"""The condition that holds for no row."""

Batches = Sequence[tuple[BatchKey, Moment, Moment]]
"""The live batches in the logs, in order: each with its start and its end."""


class Table(Protocol):
    """The rows of a table at one moment. Conditions are SQL, each for a row."""

    def identity(self) -> Made:
        """The identity of the table."""

    def spans(self, spans_ms: Iterable[Piece]) -> tuple[Piece, ...]:
        """The times that the column's own clock shows in spans of time, as :attr:`Moment.spans` has them.

        :param spans_ms: start and end (exclusive), milliseconds since the epoch, UTC.
        """

    def between(self, start: Moment, end: Moment, *, replayed: bool = True) -> str:
        """Rows of a range.

        :param replayed: leave out rows that were not visible when the range was planned.
        """

    def had(self, one: Had) -> str:
        """Rows that a lane had taken."""

    def any(self, condition: str) -> bool:
        """Whether the condition holds for a row."""

    def count_of(self, condition: str) -> int:
        """Number of rows for which the condition holds."""

    def unread(self, condition: str) -> Unread | None:
        """The rows for which the condition holds, as rows that nobody has read; None if there is none."""


def free(spans: Sequence[Piece], *, seen: Moment, found: Found, live: Iterable[Had]) -> Moment:
    """The batch of all rows of these times that no lane has.

    :param seen: what is visible.
    :param found: what lanes have taken.
    :param live: what the live lane has.
    """
    had, left = list[Had](), tuple(spans)
    # What a later interval saw of a time is all that was taken of it before: earlier ones tell nothing more.
    for _, one in reversed(found.intervals):
        part = common(left, one.spans)
        if part:
            had.append(Had(after=Moment(), end=_bare(replace(one, time=None, spans=part))))
            left = without(left, part)
    had += [Had(after=one.after, end=_bare(one.end)).within(spans) for one in live]
    return replace(seen, spans=tuple(spans), had=tuple(had))


def _bare(end: Moment) -> Moment:
    """What tells which rows there are."""
    return replace(end, since=None, rows=0, digest="", made=None, behind=0, had=())


def live_of(found: Found, batches: Batches, now: Made) -> tuple[Had, ...]:
    """What the live lane has: by what it claimed; by its log where it claims nothing yet. The first batch behind a
    position by hand has yet to give up what the lane claimed and did not make.

    :param now: the table as it is now.
    """
    log = Log(ranges=ranges(batches), is_whole=bool(batches) and batches[0][0].id == 0)
    live = found.live or by_log(log.ranges)
    begins = log.ranges[-1][1] if log.ranges else Moment()
    live = followed(live, log, begins) if begins.by_hand else live
    return replace(found, live=live).of_table(now).live


def ranges(batches: Batches) -> Sequence[tuple[Moment, Moment]]:
    """Start and end of each."""
    return [(start, end) for _, start, end in batches]


def survey(
    table: Table,
    interval: Interval,
    *,
    lane: str,
    found: Found,
    batches: Batches,
    held: HeldRanges,
    seen: Moment,
    until: int | None,
    window_ms: int,
) -> IntervalSurvey:
    """Return the rows of an interval, and their holders.

    :param lane: the lane that asks.
    :param found: what lanes have taken.
    :param batches: the live batches in the logs.
    :param held: the ranges that the batches of all lanes read.
    :param seen: what is visible.
    :param until: rows from this time on may not be read yet; microseconds as the column has it; None for no bound.
    :param window_ms: so far before the interval rows are looked for that nobody has, milliseconds.
    """
    inside, late = table.spans([(interval.start_ms, interval.end_ms)]), table.spans(interval.late)
    wanted, live = joined([*inside, *late]), live_of(found, batches, table.identity())

    def left_of(spans: Sequence[Piece]) -> str:
        return table.between(Moment(), free(spans, seen=seen, found=found, live=live), replayed=False)

    all_inside = table.between(Moment(), replace(seen, spans=inside), replayed=False)
    of_intervals = [(name, one) for name, one in found.intervals if common(one.spans, inside)]
    holders, takers, elsewhere = set[BatchKey](), set[str](), 0
    for name, one in of_intervals:
        count = 0 if name == lane else table.count_of(f"{all_inside} AND {table.between(Moment(), one)}")
        keys = [has.key for has in held.get(name, ())] if count else []
        holders.update(keys)
        if not keys:
            elsewhere += count
            takers.update([name] if count else [])
    # The condition that live batches have a row, without those that intervals took out of what live batches span.
    had = " OR ".join(f"({table.had(one)})" for one in live) or NOTHING
    of_live = f"{all_inside} AND ({had})"
    of_live += "".join(f" AND NOT ({table.between(Moment(), one)})" for _, one in of_intervals)
    for key, start, end in batches:
        may = may_have(replace(seen, spans=inside), end.since or start.time, end.time)
        if may and table.any(f"{of_live} AND {table.between(start, end)}"):
            holders.add(key)
    log = by_log(ranges(batches))
    in_log = [one if one.after.by_hand else replace(one, after=batches[0][1]) for one in log]
    elsewhere += table.count_of(of_live + _but(table, in_log))
    readable = wanted if until is None else common(wanted, [(wanted[0][0], until)])
    before = without(table.spans([(interval.start_ms - window_ms, interval.start_ms)]), wanted)
    passed = table.unread(left_of(before)) if before else None
    return IntervalSurvey(
        unread=found.of(lane) is not None or (bool(readable) and table.any(left_of(readable))),
        holders=frozenset(holders),
        splits=ROWS,
        elsewhere=elsewhere,
        takers=frozenset(takers),
        left=table.count_of(of_live + _but(table, log)),
        passed=passed,
    )


def _but(table: Table, had: Iterable[Had]) -> str:
    return "".join(f" AND NOT ({table.had(one)})" for one in had)
