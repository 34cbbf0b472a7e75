"""Two tasks of one run at one batch: whichever is alive at it is left alone. One that was renamed is its successor."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.entries import Attempt, RunIdentity
from airflow_provider_microbatch.exceptions import AttemptFencedError, BatchInProgressError
from airflow_provider_microbatch.execution.liveness import no_engine
from tests.execution.world import CODE, World, run_identity
from tests.support.inline_engine import InlineEngine


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.land(1)
    return world


def task(name: str, *, clear_number: int = 0) -> RunIdentity:
    run = run_identity(0, clear_number=clear_number)
    return dataclasses.replace(run, task_id=name, ti_id=f"{name}-{clear_number}")


def at_it(world: World, run: RunIdentity) -> Attempt:
    planned = world.execution.plan(run)
    assert planned is not None
    return world.execution.open_attempt(key=planned.key, run=run, code=CODE, engine=InlineEngine())


@pytest.mark.parametrize("clear_number", [0, 1])
def test_one_that_lives_is_left_alone_and_named(world: World, clear_number: int) -> None:
    at_it(world, task("first"))
    before, engine = world.files(), InlineEngine()
    second = task("second", clear_number=clear_number)
    named = r"live/0 is in progress: attempt 1 of task 'first' of the same run is alive \(its lease runs"
    with pytest.raises(BatchInProgressError, match=named):
        world.execution.run(run=second, engine=engine, code=CODE, transform=None)
    assert (engine.jobs, engine.cancelled) == ([], [])
    assert world.files() == before


def test_its_retry_takes_it_over_at_once(world: World) -> None:
    at_it(world, task("first"))
    again = dataclasses.replace(task("first"), ti_id="first-0-2", try_number=2)
    summary = world.execution.run(run=again, engine=InlineEngine(), code=CODE, transform=None)
    assert world.table() == {0: [1]}
    assert summary is not None


def test_one_that_is_dead_is_taken_over_by_any(world: World) -> None:
    at_it(world, task("first"))
    world.expire_leases()
    world.execution.run(run=task("second"), engine=InlineEngine(), code=CODE, transform=None)
    assert world.table() == {0: [1]}


def test_a_task_that_was_renamed_and_cleared_replays_the_batch_of_its_run(world: World) -> None:
    world.execution.run(run=task("first"), engine=InlineEngine(), code=CODE, transform=None)
    world.land(2)
    engine = InlineEngine()
    world.execution.run(run=task("second", clear_number=1), engine=engine, code=CODE, transform=None)
    assert len(engine.jobs) == 1
    assert world.table() == {0: [1]}, "its own batch again, not the next one"


def test_a_replay_that_waits_for_another_task_is_no_skip(world: World) -> None:
    world.execution.run(run=task("first"), engine=InlineEngine(), code=CODE, transform=None)
    at_it(world, task("first", clear_number=1))
    with pytest.raises(AttemptFencedError, match=r"'first' of the same run is alive.*Replay request 1 .* waits"):
        world.execution.run(run=task("second", clear_number=1), engine=InlineEngine(), code=CODE, transform=None)


def test_a_sensor_before_a_task_that_lives_still_fires(world: World) -> None:
    at_it(world, task("first"))
    assert world.execution.should_fire(task("new_data"), engine_of=no_engine).fire
