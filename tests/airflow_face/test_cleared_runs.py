"""A sensor that waits for data gives way to a cleared run that waits for its place among the active runs."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import TaskSkippedEvent, TriggerEvent

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.checkpoint.lane import Lane
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.execution.intervals import lane_of
from airflow_provider_microbatch.sensors import new_data as sensors
from airflow_provider_microbatch.sensors.new_data import NewDataSensor
from airflow_provider_microbatch.task_context import cleared_runs as cleared_runs
from airflow_provider_microbatch.task_context.cleared_runs import ClearedRuns
from airflow_provider_microbatch.task_context.run_context import identity_of
from airflow_provider_microbatch.triggers.new_data import NewDataTrigger
from tests.airflow_face.support import context, tree
from tests.execution.intervals import IntervalWorld, backfill_run, hour
from tests.execution.world import World


class Runs:
    """What Airflow says of a DAG's runs: these are queued."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queued: set[str] = set()
        self.asked = 0
        monkeypatch.setattr(RuntimeTaskInstance, "get_dr_count", staticmethod(self._count))

    def _count(self, *, dag_id: str, run_ids: Sequence[str] | None, states: Sequence[str]) -> int:
        assert (dag_id, list(states)) == ("orders", ["queued"])
        self.asked += 1
        return len(self.queued if run_ids is None else self.queued & set(run_ids))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three batches of three runs, and nothing new."""
    world = World(tmp_path)
    for number in (1, 2, 3):
        world.land(number)
        world.run(number)
    return world


def sensor(world: World, **kwargs: Any) -> NewDataSensor:
    return NewDataSensor(task_id="new_data", pipeline=world.pipeline, **{"poke_interval": 0.05, **kwargs})


def event(world: World, **kwargs: Any) -> TriggerEvent:
    """What the trigger of run 4 says within a few seconds."""
    arguments = sensor(world, deferrable=True, **kwargs).start_trigger_args
    assert arguments is not None
    trigger = NewDataTrigger(**(arguments.trigger_kwargs or {}))
    trigger._task_instance = type("", (), {"get_template_context": lambda self: context(world.root, number=4)})()

    async def first() -> TriggerEvent:
        return await asyncio.wait_for(anext(aiter(trigger.run())), 5)  # type: ignore[arg-type]

    return asyncio.run(first())


def test_in_the_triggerer_it_ends_as_skipped(world: World, runs: Runs) -> None:
    runs.queued = {"run-2"}
    before = tree(world.root)
    told = event(world)
    assert isinstance(told, TaskSkippedEvent)
    assert told.xcoms == {"return_value": "run 'run-2' was cleared and waits for this one to end"}
    assert tree(world.root) == before


def test_where_a_worker_ends_it_that_one_skips(world: World, runs: Runs) -> None:
    runs.queued = {"run-2"}
    told = event(world, end_from_trigger=False)
    assert told.payload["status"] == "gives way"
    with pytest.raises(AirflowSkipException, match="'run-2' was cleared"):
        sensor(world).execute_complete(context(world.root, number=4), told.payload)


def test_polled_by_a_worker_it_skips(world: World, runs: Runs) -> None:
    waiting = sensor(world, deferrable=False)
    given = context(world.root, number=4)
    assert not waiting.poke(given)
    runs.queued = {"run-2"}
    with pytest.raises(AirflowSkipException, match="'run-2' was cleared"):
        waiting.poke(given)


def test_new_data_comes_first(world: World, runs: Runs) -> None:
    runs.queued = {"run-2"}
    world.land(4)
    assert sensor(world, deferrable=False).poke(context(world.root, number=4))


def test_runs_that_have_made_no_batch_wait_their_turn_and_cost_one_question_a_look(
    world: World, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleared_runs, "_ASKED_AT_ONCE", 2)
    runs.queued = {"manual-1"}
    asking = identity_of(context(world.root, number=4))
    clears = ClearedRuns(world.pipeline)
    assert clears.waiting(asking) is None
    assert runs.asked == 3, "how many are queued, then the three runs of the log, two at once"
    assert clears.waiting(asking) is None
    assert runs.asked == 4
    runs.queued.add("run-1")
    assert clears.waiting(asking) == "run-1"


def test_a_run_that_is_cleared_once_those_that_waited_are_gone_is_found(world: World, runs: Runs) -> None:
    """As many are queued as were when none had a batch."""
    clears, asking = ClearedRuns(world.pipeline), identity_of(context(world.root, number=4))
    for queued, found in ((["manual-1"], None), ([], None), (["run-1"], "run-1")):
        runs.queued = set(queued)
        assert clears.waiting(asking) == found


def test_a_run_that_is_cleared_as_another_goes_is_found_ten_minutes_later(
    world: World, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks one was deleted and one was cleared."""
    clears, asking = ClearedRuns(world.pipeline), identity_of(context(world.root, number=4))
    passed = 0.0
    monkeypatch.setattr(cleared_runs, "monotonic", lambda: passed)
    runs.queued = {"manual-1"}
    assert clears.waiting(asking) is None
    runs.queued = {"run-1"}
    passed = 599.0
    assert clears.waiting(asking) is None
    passed = 600.0
    assert clears.waiting(asking) == "run-1"


def test_a_run_that_has_made_the_batch_of_a_data_interval_is_one_that_was_cleared(
    tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipeline reads what is new by now."""
    world = IntervalWorld(tmp_path, plan="interval")
    for number in (1, 2):
        world.land_at(number, number)
        world.backfill(hour(number), number)
    world.land_at(3, 3)
    world.backfill(hour(3), dataclasses.replace(backfill_run(3), run_id="backfill__3"))
    world.options["plan"] = "live"
    runs.queued = {"manual-1"}
    clears, asking = ClearedRuns(world.pipeline), identity_of(context(world.root, number=4))
    assert clears.waiting(asking) is None
    runs.queued = {"backfill__3", "manual-2"}
    assert clears.waiting(asking) is None, "it has an allowance of its own"
    asked: list[str] = []
    real = Checkpoint.lane
    monkeypatch.setattr(Checkpoint, "lane", lambda self, name: asked.append(name) or real(self, name))
    runs.queued.add("run-1")
    assert clears.waiting(asking) == "run-1"
    assert asked == [LIVE], "what a lane of an interval has told is not asked again"


@pytest.fixture
def by_intervals(tmp_path: Path) -> World:
    """A pipeline that was planned by intervals, runs 1 and 2, and reads what is new by now, run 3."""
    world = IntervalWorld(tmp_path, plan="interval")
    for number in (1, 2):
        world.land_at(number, number)
        world.backfill(hour(number), number)
    world.options["plan"] = "live"
    world.land_at(30, 3)
    world.run(3)
    return world


@pytest.mark.parametrize("cleared", ["run-2", "run-3"])
def test_a_torn_entry_of_an_interval_keeps_no_other_run_from_being_found(
    by_intervals: World, runs: Runs, cleared: str
) -> None:
    entry = by_intervals.root / "checkpoint" / "lanes" / lane_of(hour(1)) / "offsets" / "0"
    entry.write_text("torn")
    runs.queued = {cleared}
    assert ClearedRuns(by_intervals.pipeline).waiting(identity_of(context(by_intervals.root, number=4))) == cleared


def test_a_torn_entry_of_what_is_new_keeps_no_other_run_from_being_found_and_no_run_is_remembered_twice(
    world: World, runs: Runs
) -> None:
    (world.root / "checkpoint" / "offsets" / "1").write_text("torn")
    clears, asking = ClearedRuns(world.pipeline), identity_of(context(world.root, number=4))
    runs.queued = {"manual-1"}
    assert clears.waiting(asking) is None
    asked = runs.asked
    runs.queued = {"manual-1", "manual-2"}
    assert clears.waiting(asking) is None
    assert runs.asked - asked == 2, "how many are queued, then all runs of the log at once"
    runs.queued = {"run-1"}
    assert clears.waiting(asking) == "run-1"
    assert len(clears._live) <= 4


def test_a_store_that_is_away_for_a_moment_keeps_no_run_from_being_found_at_the_next_look(
    world: World, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = cleared_runs.runs_of

    def away(lane: Lane, number: int) -> Iterator[RunIdentity]:
        if number == 1:
            raise CheckpointError("the store does not answer")
        return real(lane, number)

    runs.queued = {"run-2"}
    clears, asking = ClearedRuns(world.pipeline), identity_of(context(world.root, number=4))
    with monkeypatch.context() as outage:
        outage.setattr(cleared_runs, "runs_of", away)
        for _ in range(2):
            with pytest.raises(CheckpointError):
                clears.waiting(asking)
    assert clears.waiting(asking) == "run-2"
    assert len(clears._live) == len({*clears._live}) * 2, "of each run the plan and the commit, once"


def test_the_lanes_of_intervals_are_read_where_the_live_log_has_no_run_that_waits(
    by_intervals: World, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = Checkpoint.lane
    monkeypatch.setattr(Checkpoint, "lane", lambda self, name: asked.append(name) or real(self, name))
    asking = identity_of(context(by_intervals.root, number=4))
    runs.queued = {"run-3"}
    assert ClearedRuns(by_intervals.pipeline).waiting(asking) == "run-3"
    assert asked == [LIVE]
    runs.queued = {"run-2"}
    assert ClearedRuns(by_intervals.pipeline).waiting(asking, of_intervals=False) is None
    assert {*asked} == {LIVE}
    assert ClearedRuns(by_intervals.pipeline).waiting(asking) == "run-2"


@pytest.mark.parametrize(("apart", "wanted"), [(10, [0, 600, 1200]), (70, [0, 630, 1260])])
def test_a_sensor_that_is_rescheduled_reads_the_lanes_of_intervals_now_and_then(
    by_intervals: World, runs: Runs, monkeypatch: pytest.MonkeyPatch, apart: int, wanted: list[int]
) -> None:
    """Each look is a process of its own, which knows nothing of the look before it; a busy scheduler makes the pauses
    longer than they are asked for."""
    monkeypatch.setattr(sensors, "has_rested", lambda *_, **__: False)
    asked: list[bool] = []
    monkeypatch.setattr(ClearedRuns, "waiting", lambda *_, of_intervals: asked.append(of_intervals))
    given, began_ms = context(by_intervals.root, number=4), 1_790_000_000_000
    for number, second in enumerate(range(0, 1300, apart)):
        given["task_reschedule_count"] = number
        since_ms, present_ms = began_ms if second else None, began_ms + 1000 * second
        monkeypatch.setattr(sensors, "rescheduled_since_ms", lambda _, ms=since_ms: ms)
        monkeypatch.setattr(sensors, "now_ms", lambda ms=present_ms: ms)
        assert not sensor(by_intervals, deferrable=False, poke_interval=10).poke(given)
    assert [number * apart for number, is_asked in enumerate(asked) if is_asked] == wanted


def test_who_waits_for_a_data_interval_gives_way_to_nobody(world: World, runs: Runs) -> None:
    """Its run has work of its own, which no later run would do."""
    runs.queued = {"run-1"}
    world.options["plan"] = "interval"
    assert ClearedRuns(world.pipeline).waiting(identity_of(context(world.root, number=4))) is None
    assert runs.asked == 0
