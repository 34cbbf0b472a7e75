"""``lookback``: data is late once its own interval has had its run, or has none; else it is left to that run."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import NothingInIntervalError
from airflow_provider_microbatch.execution.intervals import batch_of
from airflow_provider_microbatch.sources.intervals import Interval
from tests.execution.intervals import IntervalWorld, backfill_run, hour


@pytest.fixture
def world(tmp_path: Path) -> IntervalWorld:
    return IntervalWorld(tmp_path, plan="interval", lookback=3 * 3600)


def run(world: IntervalWorld, interval: Interval, number: int = 0) -> None:
    try:
        world.backfill(interval, number or interval.start_ms)
    except NothingInIntervalError:
        return


def key(number: float) -> str:
    return str(batch_of(hour(number)))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_in_whatever_order_runs_come_each_has_its_own_files(world: IntervalWorld, order: tuple[int, ...]) -> None:
    for number in range(3):
        world.land_at(number + 0.5, number)
    for number in order:
        run(world, hour(number))
    assert world.rows() == {key(number): [number] for number in range(3)}


def test_two_that_plan_at_once_leave_each_other_theirs(world: IntervalWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The earlier one has looked at the sources and not planned when the later one runs from plan to commit."""
    world.land_at(1.5, 1)
    world.land_at(2.5, 2)
    earlier, real = world.work(hour(1)), type(world.work(hour(1)))._lane_batch

    def later_comes(self: object, *args: object) -> object:
        monkeypatch.setattr(type(earlier), "_lane_batch", real)
        run(world, hour(2))
        return real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(type(earlier), "_lane_batch", later_comes)
    earlier.plan(backfill_run(1))
    run(world, hour(1), 1)
    assert world.rows() == {key(1): [1], key(2): [2]}


def test_what_comes_late_is_read_by_the_next_also_for_an_interval_that_had_nothing(world: IntervalWorld) -> None:
    run(world, hour(1))
    assert world.rows() == {}
    world.land_at(1.7, 1)
    run(world, hour(2))
    assert world.rows() == {key(2): [1]}


def test_what_lies_before_the_first_interval_is_late(world: IntervalWorld) -> None:
    world.land_at(0.5, 0)
    world.land_at(1.5, 1)
    world.land_at(2.5, 2)
    first = hour(1).start_ms
    run(world, dataclasses.replace(hour(2), first_ms=first))
    assert world.rows() == {key(2): [0, 2]}, "hour 1 is left to its run"
    run(world, dataclasses.replace(hour(1), first_ms=first))
    assert world.ids() == [0, 1, 2]


def test_where_somebody_backfills_before_the_first_it_is_left_to_these_runs(world: IntervalWorld) -> None:
    world.land_at(0.5, 0)
    world.land_at(1.5, 1)
    first = hour(2).start_ms
    run(world, dataclasses.replace(hour(0.75, hours=0.25), first_ms=first))
    run(world, dataclasses.replace(hour(2), first_ms=first))
    assert world.ids() == []


def test_the_sensor_says_what_the_plan_does_and_writes_nothing(world: IntervalWorld) -> None:
    world.land_at(1.5, 1)
    before = world.files()
    assert "with no unread data" in world.work(hour(2)).should_fire(backfill_run(2)).reason
    assert world.files() == before
    run(world, hour(1))
    world.land_at(1.6, 5)
    assert "with unread data" in world.work(hour(2)).should_fire(backfill_run(2)).reason


def test_in_a_checkpoint_of_an_older_version_all_up_to_its_newest_interval_had_its_run(world: IntervalWorld) -> None:
    world.land_at(0.5, 0)
    run(world, hour(0))
    run(world, hour(2))
    for path in (world.root / "checkpoint/microbatch/intervals").iterdir():
        path.unlink()
    world.land_at(0.7, 7)
    world.land_at(1.7, 8)
    run(world, hour(3))
    assert world.rows() == {key(0): [0], key(3): [7]}, "it kept no record of runs that found nothing"
    run(world, hour(1))
    assert world.ids() == [0, 7, 8]
