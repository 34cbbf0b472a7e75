"""Tests a source against the promises of every source, with the data that it has now, without Spark and a checkpoint.

For the user's own sources (``microbatch check-source``). :data:`CASES` has the tests; an error that the source raises
is a finding of the case that called the source.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

from airflow_provider_microbatch import verdict
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.sources import UNLIMITED, Late, OpenSource, ReadLimit, Source, SourceContext
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.verdict import Broken, NotTried, Verdict, check_travels

Range = tuple[Offset | None, Offset | None]


class Trial:
    """A source under trial.

    :param source: the source.
    :param store: an empty store that stands for the source's checkpoint.
    :param batches: the largest number of ranges to plan and read.
    :param rows: the limit of rows for each range.
    :param commits: whether ``commit`` may be called for ranges that were planned here: the source may act on it.
    """

    def __init__(
        self, source: Source, *, store: Store, batches: int = 3, rows: int = 100, commits: bool = False
    ) -> None:
        self.source = source
        self.commits = commits
        self.limit = ReadLimit(rows=rows)
        self._store = store
        self._batches = batches

    def open(self, source: Source | None = None) -> OpenSource:
        """Open the source as another process would."""
        context = SourceContext(
            name="source", log=self._store.scoped("log"), state=self._store.scoped("state"), clock_ms=now_ms
        )
        return (source or self.source).open(context)

    @property
    def written(self) -> list[str]:
        """The entries that the source has written."""
        return [f"{folder}/{name}" for folder in ("log", "state") for name in self._store.scoped(folder).list("")]

    def plan(self, start: Offset | None, limit: ReadLimit = UNLIMITED) -> Offset | None:
        """Return the end of the range that begins at ``start``."""
        end = self.open().latest_offset(start, limit)
        if isinstance(end, Late):
            raise NotTried("only reading tells where its ranges end")
        return end

    @cached_property
    def beginning(self) -> Offset | None:
        """The position at which the first batch begins."""
        return self.open().initial_offset()

    @cached_property
    def ranges(self) -> list[Range]:
        """Some ranges from the beginning on, planned under the limit: at least one. The last end need not be the newest
        offset."""
        found: list[Range] = []
        start = self.beginning
        while len(found) < self._batches and (end := self.plan(start, self.limit)) != start:
            found.append((start, end))
            start = end
        if not found:
            raise NotTried("the source has no data: let some come, and try again")
        return found

    def rows(self, start: Offset | None, end: Offset | None) -> Counter[str]:
        """Return the rows of a range, each with the number of its occurrences."""
        return Counter(_written(row) for row in self.open().rows(start, end))

    @cached_property
    def read(self) -> list[Counter[str]]:
        """The rows of each range, read once."""
        return [self.rows(*range) for range in self.ranges]


def the_definition_travels_as_json(trial: Trial) -> None:
    check_travels(trial.source)


def it_can_be_used(trial: Trial) -> None:
    trial.open().check()


def an_offset_is_one_line_of_json(trial: Trial) -> None:
    ends = [trial.beginning, *(end for _, end in trial.ranges)]
    for offset in filter(None, ends):
        if "\n" in offset or json.loads(offset) is None:
            raise Broken(f"{offset!r} is none")


def to_ask_writes_nothing(trial: Trial) -> None:
    for position in (None, trial.beginning, *(end for _, end in trial.ranges)):
        trial.open().has_new(position)
    if trial.written:
        raise Broken(f"has_new wrote {', '.join(trial.written)}")


def what_fires_can_be_planned(trial: Trial) -> None:
    for start, end in trial.ranges:
        if not trial.open().has_new(start):
            raise Broken(f"after {start} has_new says no, and latest_offset gave {end}: the sensor would never fire")
    newest = trial.plan(trial.ranges[-1][1])
    if trial.open().has_new(newest) and trial.plan(newest) == newest:
        raise Broken(f"after {newest} has_new says yes, and latest_offset the same: the sensor would fire for ever")


def a_plan_is_the_same_when_asked_again(trial: Trial) -> None:
    for start, end in trial.ranges:
        again = trial.plan(start, trial.limit)
        if again != end and trial.open().is_after(again, end) is False:
            raise Broken(f"from {start} it was planned to {end}, and then to {again}, which lies before")


def an_offset_lies_after_where_its_range_begins(trial: Trial) -> None:
    source = trial.open()
    for start, end in trial.ranges:
        if source.is_after(end, start) is False or source.is_after(start, end) is True:
            raise Broken(f"is_after says that {end} does not lie after {start}, from where it was planned")


def a_range_read_twice_gives_the_same_rows(trial: Trial) -> None:
    for (start, end), before in zip(trial.ranges, trial.read, strict=True):
        _compare(before, trial.rows(start, end), f"({start}, {end}] was read twice", ("the first time", "the second"))


def a_planned_range_is_not_empty(trial: Trial) -> None:
    for (start, end), rows in zip(trial.ranges, trial.read, strict=True):
        if not rows:
            raise Broken(f"({start}, {end}] was planned, and has no row: each such batch is a run for nothing")


def ranges_tile_the_stream(trial: Trial) -> None:
    if len(trial.ranges) < 2:
        raise NotTried("all of its data is one range: let more come, have latest_offset heed limit.rows, or ask for "
                       "smaller ranges (--rows)")  # fmt: skip
    start, end = trial.ranges[0][0], trial.ranges[-1][1]
    pieces = sum(trial.read, Counter[str]())
    _compare(pieces, trial.rows(start, end), f"({start}, {end}] was read", ("range by range", "at once"))


def an_empty_range_has_no_rows(trial: Trial) -> None:
    for _, end in trial.ranges:
        if rows := trial.rows(end, end):
            raise Broken(f"({end}, {end}] has {rows.total()} row(s), such as {next(iter(rows))}")


def limits_are_respected(trial: Trial) -> None:
    most = trial.limit.rows or 0
    for (start, end), rows in zip(trial.ranges, trial.read, strict=True):
        if rows.total() > most and trial.open().describe(start, end).rows is not None:
            raise Broken(
                f"({start}, {end}] has {rows.total()} rows, and {most} were the limit; its rows can be counted"
            )
    if max(rows.total() for rows in trial.read) > most:
        raise NotTried("it heeds no limit of rows: pace (target_seconds) cannot hold it")
    for start, _ in trial.ranges:
        if trial.plan(start, ReadLimit(rows=1)) == start:
            raise Broken(f"after {start} there are rows, and under a limit of one row none is planned: it would hang")


def figures_agree_with_the_rows(trial: Trial) -> None:
    for (start, end), rows in zip(trial.ranges, trial.read, strict=True):
        told = trial.open().describe(start, end).rows
        if told is None:
            raise NotTried("it does not count")
        if told != rows.total():
            raise Broken(f"({start}, {end}] has {rows.total()} rows, and it counts {told}")


def a_commit_can_be_said_twice_and_takes_nothing_away(trial: Trial) -> None:
    if not trial.commits:
        raise NotTried("commit may change something at the source: allow it by --commit")
    (start, end), before = trial.ranges[0], trial.read[0]
    assert end is not None
    for _ in range(2):
        trial.open().commit(end)
    if not trial.source.gives_up:
        _compare(before, trial.rows(start, end), f"({start}, {end}] was read", ("before its commit", "after it"))


CASES: Sequence[Callable[[Trial], None]] = (
    the_definition_travels_as_json,
    it_can_be_used,
    an_offset_is_one_line_of_json,
    to_ask_writes_nothing,
    what_fires_can_be_planned,
    a_plan_is_the_same_when_asked_again,
    an_offset_lies_after_where_its_range_begins,
    a_planned_range_is_not_empty,
    a_range_read_twice_gives_the_same_rows,
    ranges_tile_the_stream,
    an_empty_range_has_no_rows,
    limits_are_respected,
    figures_agree_with_the_rows,
    a_commit_can_be_said_twice_and_takes_nothing_away,
)


def verdicts(trial: Trial) -> Iterator[Verdict]:
    """Try each case, in order."""
    return verdict.verdicts(CASES, trial)


def _compare(one: Counter[str], other: Counter[str], what: str, when: tuple[str, str]) -> None:
    if one == other:
        return
    only = [(moment, left) for moment, left in zip(when, (one - other, other - one), strict=True) if left]
    told = "; ".join(f"only {moment}: {left.total()} row(s), such as {next(iter(left))}" for moment, left in only)
    raise Broken(f"{what}, {one.total()} rows {when[0]} and {other.total()} {when[1]}: {told}")


def _written(row: Any) -> str:
    """Return a text that is the same for equal rows."""
    return json.dumps(row, sort_keys=True, default=repr, ensure_ascii=False)
