"""Whatever the order of live plans and interval plans, and whenever files land: each file is in exactly one batch."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_microbatch.exceptions import NothingInIntervalError
from airflow_provider_microbatch.sources.file import FileSource
from tests.execution.intervals import IntervalWorld, backfill_run, hour
from tests.execution.world import run_identity

HOURS = 6

_lands = st.tuples(st.just("land"), st.integers(0, HOURS * 60 - 1))
_lives = st.tuples(st.just("live"), st.booleans())
_backfills = st.tuples(st.just("backfill"), st.tuples(st.integers(0, HOURS - 1), st.integers(1, 3), st.booleans()))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(_lands, _lives, _backfills), max_size=20), st.sampled_from([None, 1, 2]))
def test_each_file_is_in_exactly_one_batch(steps: list[tuple[str, object]], max_files: int | None) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        _check(IntervalWorld(root), steps, max_files)
    finally:
        shutil.rmtree(root)


def _check(world: IntervalWorld, steps: list[tuple[str, object]], max_files: int | None) -> None:
    world.sources = {"orders": FileSource(str(world.landing()), schema="id long", max_files=max_files)}
    landed = 0
    for number, (what, argument) in enumerate(steps):
        if what == "land":
            assert isinstance(argument, int)
            world.land_at(argument / 60, landed)
            landed += 1
        elif what == "live":
            # Planned only, the batch is finished by the next live run, whatever lands or is backfilled before.
            if argument:
                world.run(number)
            else:
                world.execution.plan(run_identity(number))
        else:
            assert isinstance(argument, tuple)
            first, length, finish = argument
            _backfill(world, number, first, length, finish=finish)
    for lane in world.checkpoint.lanes()[1:]:
        key_hour = next(
            (first, length)
            for first in range(HOURS)
            for length in range(1, 4)
            if world.work(hour(first, hours=length)).key.lane == lane
        )
        _backfill(world, 1_000, *key_hour, finish=True)
    for number in range(2_000, 2_100):
        if world.run(number) is None:
            break
    assert world.ids() == list(range(landed))
    assert not world.execution.should_fire().fire


def _backfill(world: IntervalWorld, number: int, first: int, length: int, *, finish: bool) -> None:
    interval = hour(first, hours=length)
    try:
        if finish:
            world.backfill(interval, number)
        else:
            world.work(interval).plan(backfill_run(number))
    except NothingInIntervalError:
        return
