"""NewDataSensor and its trigger: when they fire, what they never do."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowException, AirflowRescheduleException
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.execution.backfill import IntervalWork
from airflow_provider_microbatch.execution.fire import FireDecision
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.sensors.new_data import NewDataSensor
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table.spark_catalog import SparkCatalog
from airflow_provider_microbatch.sinks.table.statements import ConnectStatements
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.intervals import Interval
from airflow_provider_microbatch.stores.posix import PosixStore
from airflow_provider_microbatch.task_context.run_context import identity_of
from airflow_provider_microbatch.triggers import new_data
from airflow_provider_microbatch.triggers.new_data import NewDataTrigger, decide
from tests.airflow_face.support import context, tree
from tests.execution.world import CODE, World, run_identity
from tests.support.inline_engine import InlineEngine


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.landing()
    return world


def triggered(world: World, given: Any = None, **kwargs: Any) -> NewDataTrigger:
    """The trigger as the triggerer makes it: from its serialised form, with the task instance set."""
    sensor = NewDataSensor(task_id="new_data", pipeline=world.pipeline, deferrable=True, poke_interval=0.05, **kwargs)
    assert sensor.start_trigger_args is not None
    arguments = json.loads(json.dumps(sensor.start_trigger_args.trigger_kwargs))
    path, again = NewDataTrigger(**arguments).serialize()
    assert path == sensor.start_trigger_args.trigger_cls
    trigger = NewDataTrigger(**json.loads(json.dumps(again)))
    given = given or context(world.root)
    trigger._task_instance = SimpleNamespace(get_template_context=lambda: given)  # type: ignore[assignment]
    return trigger


def event(trigger: NewDataTrigger, *, timeout: float = 5.0) -> TriggerEvent:
    async def first() -> TriggerEvent:
        return await asyncio.wait_for(anext(aiter(trigger.run())), timeout)  # type: ignore[arg-type]

    return asyncio.run(first())


def fires(trigger: NewDataTrigger) -> bool:
    """Whether it fires within a few looks."""
    try:
        fired = event(trigger, timeout=0.4)
    except TimeoutError:
        return False
    assert isinstance(fired, TaskSuccessEvent), fired
    return True


def leave_planned(world: World) -> None:
    def die(job: Job) -> None:
        raise EngineError("the worker is gone")

    with pytest.raises(EngineError):
        world.run(1, InlineEngine(before_stage=die))


def test_it_waits_while_nothing_is_new_and_fires_when_a_file_lands(world: World) -> None:
    async def wait_then_land() -> tuple[bool, TriggerEvent]:
        waiting = asyncio.ensure_future(anext(aiter(triggered(world).run())))  # type: ignore[arg-type]
        await asyncio.sleep(0.3)
        early = waiting.done()
        world.land(1)
        return early, await asyncio.wait_for(waiting, 5)

    early, fired = asyncio.run(wait_then_land())
    assert not early
    assert isinstance(fired, TaskSuccessEvent)
    assert fired.xcoms == {"return_value": "new data in orders"}


def test_it_fires_at_once_when_a_batch_is_planned_and_not_committed(world: World) -> None:
    world.land(1)
    leave_planned(world)
    assert fires(triggered(world, context(world.root, number=2)))


def test_it_fires_at_once_when_its_own_run_planned_one_already(world: World) -> None:
    world.land(1)
    world.run(1)
    assert not fires(triggered(world, context(world.root, number=2)))
    assert fires(triggered(world, context(world.root, number=1)))


def test_a_cleared_run_finds_its_batch_behind_newer_ones(world: World) -> None:
    for number in (1, 2, 3):
        world.land(number)
        world.run(number)
    # Started from its trigger it is not told the clear number; the try number says that it may be a clear.
    assert fires(triggered(world, context(world.root, number=1, try_number=2)))


_LATE = 4_000_000_000_000


class Reading:
    """How often entries of offset log and commit log are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = PosixStore.get

        def get(store: PosixStore, path: str) -> bytes | None:
            self.count += Path(store.location).name in ("offsets", "commits")
            return real(store, path)

        monkeypatch.setattr(PosixStore, "get", get)

    def of(self, look: Callable[[], object]) -> int:
        before = self.count
        look()
        return self.count - before


def test_a_cleared_sensor_searches_the_log_once_and_then_waits_at_the_price_of_any_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = Reading(monkeypatch)
    given = context(world.root, number=99, try_number=2, clear_number=1)
    given["ti"].get_first_reschedule_date = lambda context: datetime.now(tz=UTC)

    def costs() -> list[int]:
        sensor, rescheduled = (
            NewDataSensor(task_id="new_data", pipeline=world.pipeline, deferrable=False) for _ in range(2)
        )
        looks = [reading.of(lambda: sensor.poke(given)) for _ in range(3)]
        return [*looks, reading.of(lambda: rescheduled.poke({**given, "task_reschedule_count": 1}))]

    for number in range(3):
        world.land(number + 1)
        world.run(number)
    first, *flat = costs()
    for number in range(3, 12):
        world.land(number + 1)
        world.run(number)
    longer, *still_flat = costs()
    assert longer > first
    assert flat == still_flat
    assert max(flat) < first


def test_the_trigger_of_a_retried_sensor_searches_the_log_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        world.land(number + 1)
        world.run(number)
    reading, costs = Reading(monkeypatch), []

    def decided(*args: Any, **kwargs: Any) -> FireDecision:
        found: list[FireDecision] = []
        costs.append(reading.of(lambda: found.append(decide(*args, **kwargs))))
        return found[0]

    monkeypatch.setattr(new_data, "decide", decided)
    assert not fires(triggered(world, context(world.root, number=99, try_number=2)))
    assert len(set(costs[1:])) == 1
    assert costs[0] > costs[1]


def test_what_a_command_has_changed_is_searched_again(world: World) -> None:
    """A rewind in the meantime, say: what the log said before it says nothing now."""
    for number in (1, 2, 3):
        world.land(number)
        world.run(number)
    run = identity_of(context(world.root, number=1, clear_number=1))
    log = world.checkpoint.maintenance
    begun = log.begin(command="rewind 2", by="somebody", started_ms=now_ms(), steps=[])
    asked_ms = now_ms()
    assert not world.execution.should_fire(run).fire
    log.end(begun, outcome="applied", ended_ms=now_ms())
    assert world.execution.should_fire(run, searched_ms=asked_ms).fire


@pytest.mark.parametrize("plan", ["live", "interval"])
def test_an_engine_that_cannot_be_asked_from_here_lets_it_fire(
    world: World, monkeypatch: pytest.MonkeyPatch, plan: str
) -> None:
    """No ``yarn`` in the triggerer, say. The operator behind it is where the engine can be asked."""

    def cannot(name: str) -> Any:
        raise EngineError("the command 'yarn' is not on PATH")

    world.land(1)
    monkeypatch.setattr(new_data, "find_engine", cannot)
    if plan == "interval":
        world.options["plan"] = "interval"
        day = Interval(start_ms=0, end_ms=_LATE)
        work = IntervalWork(
            pipeline=world.pipeline, checkpoint=world.checkpoint, interval=day, clock_ms=lambda: day.end_ms
        )
        (planned,) = work.plan(run_identity(1))
        execution = work.execution(planned.key)
    else:
        day, execution = None, world.execution
        found = execution.plan(run_identity(1))
        assert found is not None
        planned = found
    execution.open_attempt(key=planned.key, run=run_identity(1), code=CODE, engine=InlineEngine())
    another = run_identity(2)
    assert not decide(world.pipeline, another, backfill=False, interval=day).fire
    world.expire_leases()
    assert decide(world.pipeline, another, backfill=False, interval=day).fire


def test_it_fires_at_once_in_a_backfill(world: World) -> None:
    assert fires(triggered(world, context(world.root, run_type="backfill")))


def test_the_servers_that_a_dag_names_need_no_trust_in_the_triggerer(world: World) -> None:
    catalog = SparkCatalog(ConnectStatements("sc://127.0.0.1:1"), str(world.root / "tables"))
    world.options["sink"] = TableSink(catalog, "orders", schema="id long")
    world.land(1)
    assert fires(triggered(world))


def test_it_never_writes(world: World) -> None:
    world.land(1)
    before = tree(world.root)
    assert fires(triggered(world))
    assert tree(world.root) == before
    leave_planned(world)
    before = tree(world.root)
    assert fires(triggered(world))
    world.run(1)
    before = tree(world.root)
    assert not fires(triggered(world, context(world.root, number=2)))
    assert tree(world.root) == before


def test_an_error_fails_the_sensor_with_its_text(world: World) -> None:
    world.landing().rmdir()
    told = event(triggered(world))
    assert told.payload["status"] == "failed"
    sensor = NewDataSensor(task_id="new_data", pipeline=world.pipeline, deferrable=True)
    with pytest.raises(AirflowException, match="landing"):
        sensor.execute_complete(context(world.root), told.payload)


def test_asset_events_need_a_worker_so_a_sensor_with_outlets_ends_in_one(world: World) -> None:
    world.land(1)
    told = event(triggered(world, outlets=[Asset("orders")]))
    assert not isinstance(told, TaskSuccessEvent)
    assert told.payload == {"status": "fired", "reason": "new data in orders"}
    sensor = NewDataSensor(task_id="new_data", pipeline=world.pipeline, deferrable=True)
    assert sensor.execute_complete(context(world.root), told.payload) == "new data in orders"


def test_what_the_triggerer_cannot_import_is_polled_by_a_worker(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass(frozen=True)
    class ShippedSource(FileSource):
        """Lives in a module that only this process has."""

    here = ModuleType("only_on_the_worker")
    here.ShippedSource = ShippedSource  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "only_on_the_worker", here)
    ShippedSource.__module__, ShippedSource.__qualname__ = "only_on_the_worker", "ShippedSource"
    world.sources = {"orders": ShippedSource(str(world.landing()), schema="id long")}
    sensor = NewDataSensor(task_id="new_data", pipeline=world.pipeline, deferrable=True)
    trigger = triggered(world)
    monkeypatch.delitem(sys.modules, "only_on_the_worker")
    told = event(trigger)
    assert told.payload["status"] == "not importable"
    given = context(world.root)
    given["ti"].get_first_reschedule_date = lambda context: None
    with pytest.raises(AirflowRescheduleException):
        sensor.execute_complete(given, told.payload)
    world.land(1)
    sensor.execute_complete(given, told.payload)


def test_a_source_class_in_the_dag_file_never_reaches_the_triggerer(world: World) -> None:
    @dataclasses.dataclass(frozen=True)
    class InTheDagFile(FileSource):
        """A DAG file's module has a name that no other process knows."""

    InTheDagFile.__module__ = "unusual_prefix_0123_orders"
    world.sources = {"orders": InTheDagFile(str(world.landing()), schema="id long")}
    sensor = NewDataSensor(task_id="new_data", pipeline=world.pipeline, deferrable=True)
    assert not sensor.start_from_trigger
    assert sensor.mode == "reschedule"
    given = context(world.root)
    given["ti"].get_first_reschedule_date = lambda context: None
    with pytest.raises(AirflowRescheduleException):
        sensor.execute(given)


def test_not_deferrable_it_polls_in_a_worker(world: World) -> None:
    sensor = NewDataSensor(task_id="new_data", pipeline=world.pipeline, deferrable=False)
    assert not sensor.start_from_trigger
    assert not sensor.poke(context(world.root))
    world.land(1)
    assert sensor.poke(context(world.root))
    assert sensor.poke(context(world.root, run_type="backfill"))


PRINT_DAG = """
import sys
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization
from airflow_provider_microbatch import FileSink, FileSource, Pipeline
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.sensors.new_data import NewDataSensor
import json
sources = {name: FileSource(f"/nowhere/{name}", options={"a": 1, "b": 2}) for name in ("one", "two")}
pipeline = Pipeline("p", checkpoint="/nowhere/c", sources=sources, sink=FileSink("/nowhere/t"), transform="a.py:f")
with DAG("d", schedule="@continuous", max_active_runs=1) as dag:
    NewDataSensor(task_id="s", pipeline=pipeline, deferrable=True) >> MicroBatchOperator(task_id="m", pipeline=pipeline)
text = json.dumps(DagSerialization.to_dict(dag), sort_keys=True)
print("said:" + text)
"""


@pytest.mark.slow
def test_the_serialised_dag_is_small_and_the_same_at_every_parse() -> None:
    # What differs between parses makes Airflow store a new version of the DAG every few seconds.
    said = []
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", PRINT_DAG],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert run.returncode == 0, run.stderr
        said.append(next(line for line in run.stdout.splitlines() if line.startswith("said:")))
    assert said[0] == said[1]
    assert len(said[0]) < 10_000
