"""What every source must do of data intervals: what one lane takes no other lane reads, in either direction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import IntervalError
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.sources.intervals import HeldRange, HeldRanges, Interval, TellsLanes
from tests.contract.contexts import context_in
from tests.contract.registered import marked, registered
from tests.contract.test_source import SERVED, SYSTEMS, System

CLOCKED = (
    "file",
    "file, ordered",
    "s3",
    "s3, ordered",
    "jdbc, by time",
    "jdbc, mariadb by time",
    "kafka",
)
"""Whose sources tell to which data interval something belongs."""

of_clocked = pytest.mark.parametrize("system_name", marked(CLOCKED, slow=SERVED))
system_name = registered(SYSTEMS, slow=SERVED)


@pytest.fixture
def system(system_name: str, tmp_path: Path) -> Iterator[System]:
    with ExitStack() as stack:
        yield SYSTEMS[system_name](tmp_path, stack)


@pytest.fixture
def opened(system: System, tmp_path: Path) -> Callable[..., OpenSource]:
    """The source as a new process of a lane sees it."""

    return lambda lane=LIVE: system.source.open(context_in(tmp_path / "checkpoint", lane=lane))


ALL_TIME = Interval(start_ms=0, end_ms=2**41)
A, B = "interval-a", "interval-b"


def held_by(lane: str, start: Offset | None, end: Offset | None) -> HeldRanges:
    return {lane: [HeldRange(key=BatchKey(lane, 0), start=start, end=end)]}


def test_a_source_knows_whether_it_has_a_clock_and_a_survey_writes_nothing(
    system: System, system_name: str, tmp_path: Path, opened: Callable[..., OpenSource]
) -> None:
    system.arrive()
    if system_name in CLOCKED:
        assert opened(A).survey_interval(ALL_TIME, {}).unread
    else:
        for ask in (opened(A).survey_interval, opened(A).plan_interval):
            with pytest.raises(IntervalError, match="no clock"):
                ask(ALL_TIME, {})
    assert not (tmp_path / "checkpoint").exists()


@of_clocked
def test_what_an_interval_takes_no_other_lane_reads(system: System, opened: Callable[..., OpenSource]) -> None:
    assert not opened(A).survey_interval(ALL_TIME, {}).unread
    for _ in range(3):
        system.arrive()
    start, end = opened(A).plan_interval(ALL_TIME, {})
    assert start != end
    figures = opened(A).describe(start, end)
    assert 3 in (figures.rows, figures.splits), "limits of a batch are none of an interval"
    asked = opened()
    assert isinstance(asked, TellsLanes)
    assert asked.taken_by() == {A}
    read = opened(A).read(start, end)
    assert opened(A).plan_interval(ALL_TIME, {}) == (start, end), "said again it is what it was"
    held = held_by(A, start, end)
    survey = opened(B).survey_interval(ALL_TIME, held)
    assert (survey.unread, survey.holders, survey.elsewhere) == (False, {BatchKey(A, 0)}, 0)
    assert not survey.takers
    survey = opened(B).survey_interval(ALL_TIME, {})
    assert (survey.unread, survey.holders, survey.takers) == (False, set(), {A}), "whose batch is not in the logs"
    assert survey.elsewhere > 0
    begin, same = opened(B).plan_interval(ALL_TIME, held)
    assert begin == same
    system.arrive()
    position = opened().latest_offset(opened().initial_offset())
    assert asked.taken_by() == {A}
    live = opened().describe(opened().initial_offset(), position)
    assert 1 in (live.rows, live.splits)
    assert opened(A).read(start, end) == read
    opened(A).verify(start, end)


@of_clocked
def test_what_the_live_lane_takes_no_interval_reads(system: System, opened: Callable[..., OpenSource]) -> None:
    system.arrive()
    end = opened().latest_offset(opened().initial_offset())
    start = opened().initial_offset()
    held, read = held_by(LIVE, start, end), opened().read(start, end)
    survey = opened(A).survey_interval(ALL_TIME, held)
    assert (survey.unread, survey.holders, survey.left) == (False, {BatchKey(LIVE, 0)}, 0)
    assert not opened(A).survey_interval(ALL_TIME, {}).takers, "lanes of data intervals alone"
    begin, same = opened(A).plan_interval(ALL_TIME, held)
    assert begin == same
    system.arrive()
    figures = opened(A).describe(*opened(A).plan_interval(ALL_TIME, held))
    assert 1 in (figures.rows, figures.splits)
    assert opened().read(start, end) == read
    rest = opened().describe(end, opened().latest_offset(end))
    assert {rest.rows, rest.splits} <= {0, None}
