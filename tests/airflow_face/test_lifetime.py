"""What a source or a sink opens is closed when the task, look or command is over, however it ends."""

from __future__ import annotations

import contextvars
import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.lifetime import at_end, lifetime, shared
from airflow_provider_microbatch.listeners import listener
from airflow_provider_microbatch.operators.drain import DrainSlotOperator
from airflow_provider_microbatch.operators.janitor import MicroBatchJanitorOperator
from airflow_provider_microbatch.operators.steps import CommitMicroBatchOperator, PlanMicroBatchOperator
from airflow_provider_microbatch.sensors.new_data import NewDataSensor
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.task_context.run_context import identity_of
from airflow_provider_microbatch.triggers.job_data import JobDataTrigger
from tests.airflow_face.support import InlineOperator, InlineSubmit, context, transform_file
from tests.airflow_face.test_listener import in_the_task
from tests.airflow_face.test_new_data import event, fires, triggered
from tests.execution.world import World
from tests.support.inline_engine import InlineEngine


class Held:
    """What is open of all that was opened."""

    def __init__(self) -> None:
        self.opened = 0
        self.open = set[int]()

    def hold(self, at_end: Callable[[Callable[[], None]], None]) -> None:
        number, self.opened = self.opened, self.opened + 1
        self.open.add(number)
        at_end(lambda: self.open.remove(number))

    def wrap(self, patch: pytest.MonkeyPatch, made: type) -> None:
        real = made.open  # type: ignore[attr-defined]

        def opened(definition: Any, given: Any) -> Any:
            self.hold(given.at_end)
            return real(definition, given)

        patch.setattr(made, "open", opened)


@pytest.fixture(params=[FileSink, FileSource], ids=["sink", "source"])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Held:
    held = Held()
    held.wrap(monkeypatch, request.param)
    return held


@pytest.fixture
def world(tmp_path: Path) -> World:
    transform_file(tmp_path)
    world = World(tmp_path)
    world.land(1)
    return world


def operator(world: World, engine: InlineEngine | None = None) -> InlineOperator:
    return InlineOperator(task_id="micro_batch", pipeline=world.pipeline, inline=engine or InlineEngine())


def away(_: Any) -> None:
    raise EngineError("the cluster is away")


def test_of_a_task_that_ends_well_fails_or_skips(world: World, held: Held) -> None:
    with pytest.raises(EngineError):
        operator(world, InlineEngine(before_stage=away)).execute(context(world.root))
    assert (held.opened > 0, held.open) == (True, set())
    operator(world).execute(context(world.root, try_number=2))
    with pytest.raises(AirflowSkipException):
        operator(world).execute(context(world.root, number=2))
    assert held.open == set()


def test_of_each_step(world: World, held: Held) -> None:
    key = PlanMicroBatchOperator(task_id="plan", pipeline=world.pipeline).execute(context(world.root, task_id="plan"))
    planned = held.opened
    assert (planned > 0, held.open) == (True, set())
    submit = InlineSubmit(task_id="submit", pipeline=world.pipeline, key=key, inline=InlineEngine())
    submitted = submit.execute(context(world.root, task_id="submit"))
    assert (held.opened > planned, held.open) == (True, set())
    run = held.opened
    commit = CommitMicroBatchOperator(task_id="commit", pipeline=world.pipeline, submitted=submitted)
    commit.execute(context(world.root, task_id="commit"))
    assert (held.opened > run, held.open) == (True, set())


def test_of_each_look_of_the_sensor_and_its_trigger(world: World, held: Held) -> None:
    assert NewDataSensor(task_id="new_data", pipeline=world.pipeline).poke(context(world.root))
    looked = held.opened
    assert (looked > 0, held.open) == (True, set())
    assert fires(triggered(world))
    assert (held.opened > looked, held.open) == (True, set())


def test_of_a_slot_that_has_nothing_to_do(world: World, held: Held) -> None:
    slot = DrainSlotOperator(task_id="slot", pipeline=world.pipeline, slot=1)
    given = context(world.root, run_type="backfill")
    given["ti"].get_task_states = lambda **_: {}
    with pytest.raises(AirflowSkipException, match="slot 0 makes"):
        slot.execute(given)
    assert held.open == set()


def test_of_janitor_command_and_listener(world: World, held: Held) -> None:
    with pytest.raises(EngineError):
        operator(world, InlineEngine(before_stage=away)).execute(context(world.root))
    held.opened = 0
    listener.on_task_instance_failed(previous_state="running", task_instance=in_the_task(world), error=OSError())
    assert held.open == set()
    world.expire_leases()
    MicroBatchJanitorOperator(task_id="janitor", pipelines=[world.pipeline]).execute(context(world.root))
    assert held.open == set()
    for command in ("check", "janitor", "repair"):
        main([command, world.pipeline.checkpoint])
        assert held.open == set()
    assert held.opened > 0


def test_the_newest_is_closed_first_and_one_that_cannot_be_closed_keeps_no_other_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed = list[str]()

    def broken() -> None:
        raise OSError("the socket is gone")

    @lifetime()
    def work() -> None:
        at_end(lambda: closed.append("first"))
        at_end(broken)
        with lifetime():
            at_end(lambda: closed.append("of another within"))
        assert closed == ["of another within"]
        at_end(lambda: closed.append("last"))
        raise ValueError("the work's own")

    with pytest.raises(ValueError, match="the work's own"):
        work()
    assert closed == ["of another within", "last", "first"]
    assert "broken could not be closed: the socket is gone" in caplog.text


def test_outside_of_any_nothing_is_kept() -> None:
    closed = list[str]()
    at_end(lambda: closed.append("never"))
    with lifetime():
        pass
    assert closed == []


class Clients:
    """Clients that are shared by a key, and how often one was opened and closed."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0

    def open(self) -> tuple[int, Callable[[], None]]:
        self.opened += 1
        return self.opened, self.close

    def close(self) -> None:
        self.closed += 1


def test_what_is_shared_is_opened_once_and_closed_with_the_last_lifetime_around_who_holds_it() -> None:
    clients, begun, over = Clients(), threading.Event(), threading.Event()

    @lifetime()
    def other() -> None:
        assert shared("cluster", clients.open) == 1
        begun.set()
        over.wait(30)

    thread = threading.Thread(target=other)
    with lifetime():
        for _ in range(3):
            with lifetime():
                assert shared("cluster", clients.open) == 1
        assert shared("elsewhere", clients.open) == 2
        thread.start()
        begun.wait(30)
    assert (clients.opened, clients.closed) == (2, 1)
    over.set()
    thread.join()
    assert (clients.opened, clients.closed) == (2, 2)
    with lifetime():
        assert shared("cluster", clients.open) == 3
    assert clients.closed == 3


def test_outside_of_any_lifetime_nothing_is_shared_and_nobody_closes_it() -> None:
    clients = Clients()
    assert (shared("cluster", clients.open), shared("cluster", clients.open)) == (1, 2)
    assert clients.closed == 0


def test_a_look_that_outlives_its_trigger_opens_nothing_that_nobody_closes() -> None:
    clients, closed = Clients(), list[str]()
    with lifetime():
        late = contextvars.copy_context()
    with pytest.raises(RuntimeError, match="has ended"):
        late.run(shared, "cluster", clients.open)
    with pytest.raises(RuntimeError, match="has ended"):
        late.run(at_end, lambda: closed.append("closed"))
    assert (clients.opened, closed) == (0, ["closed"])


def test_a_trigger_holds_a_client_over_all_its_looks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    clients, looks = Clients(), list[int]()
    real = FileSource.open

    def opened(source: Any, given: Any) -> Any:
        looks.append(shared("cluster", clients.open))
        return real(source, given)

    world.run(1)
    monkeypatch.setattr(FileSource, "open", opened)
    assert not fires(triggered(world, context(world.root, number=2)))
    assert len(looks) > 1
    assert (set(looks), clients.opened, clients.closed) == ({1}, 1, 1)
    world.land(2)
    assert fires(triggered(world, context(world.root, number=2)))
    assert (clients.opened, clients.closed) == (2, 2)


def test_the_trigger_of_a_job_does_so_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a client that hangs, which ends with its last holder, would not end with a trigger that is cleared."""
    clients, looks = Clients(), list[int]()
    real = FileSource.open

    def opened(source: Any, given: Any) -> Any:
        looks.append(shared("cluster", clients.open))
        return real(source, given)

    world.run(1)
    monkeypatch.setattr(FileSource, "open", opened)
    trigger = JobDataTrigger(
        pipelines=[triggered(world).pipeline],
        poll_interval=0.05,
        retry_seconds=60,
        run=dataclasses.asdict(identity_of(context(world.root, number=2))),
    )
    with pytest.raises(TimeoutError):
        event(trigger, timeout=1)  # type: ignore[arg-type]
    assert len(looks) > 1
    assert (set(looks), clients.opened, clients.closed) == ({1}, 1, 1)
