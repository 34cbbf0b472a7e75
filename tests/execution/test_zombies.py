"""A try that slept through the end of its batch, and wakes up: it neither undoes a replay nor passes for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.entries import Attempt, RunIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.sinks import file as file_sink
from tests.execution.world import CODE, World, run_identity
from tests.support.inline_engine import InlineEngine

KEY = BatchKey("live", 0)


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Row 1 is landed and planned as batch 0 by run 0."""
    world = World(tmp_path)
    world.land(1)
    world.execution.plan(run_identity(0))
    return world


def newer() -> InlineEngine:
    """An engine with other code: it adds 100."""
    return InlineEngine(transform=lambda sources: [{"id": row["id"] + 100} for row in sources["orders"]])


def staged(world: World, run: RunIdentity, engine: InlineEngine | None = None) -> Attempt:
    """An attempt of ``run`` that fell asleep just before publish."""
    engine = engine or InlineEngine()
    attempt = world.execution.open_attempt(key=KEY, run=run, code=CODE, engine=engine)
    job = world.execution.job(attempt, None)
    world.execution.run_attempt(attempt=attempt, job=job, engine=engine, code=CODE)
    return attempt


def wake_up(world: World, attempt: Attempt) -> None:
    manifest = world.execution.publish(attempt)
    world.execution.commit(key=KEY, manifest=manifest, run=attempt.run)


def test_a_first_run_that_comes_late_does_not_undo_a_replay(world: World) -> None:
    """It may even have the newest epoch: it fell asleep after the plan and took it when it woke up."""
    world.run(0, try_number=2)
    world.run(0, newer(), clear_number=1, try_number=3)
    wake_up(world, staged(world, run_identity(0)))
    assert world.table() == {0: [101]}
    assert world.stages() == []


def test_an_older_replay_that_comes_late_does_not_undo_a_newer_one(world: World) -> None:
    world.run(0, try_number=2)
    world.run(0, clear_number=1, try_number=3)
    world.run(0, newer(), clear_number=2, try_number=4)
    wake_up(world, staged(world, run_identity(0, clear_number=1)))
    assert world.table() == {0: [101]}
    assert world.stages() == []


def test_a_first_run_that_comes_late_does_not_answer_a_replay_that_has_not_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = staged(world, run_identity(0))
    world.run(0, try_number=2)

    def killed(*args: object, **kwargs: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Execution, "open_attempt", killed)
        with pytest.raises(Killed):
            world.run(0, clear_number=1, try_number=3)
    wake_up(world, late)
    assert [replay.epoch for replay in world.checkpoint.replays.pending(KEY)] == [1]
    world.run(0, newer(), clear_number=1, try_number=4)
    assert world.table() == {0: [101]}
    assert world.checkpoint.replays.pending(KEY) == []


def test_what_a_replay_left_that_died_in_its_replace_is_cleared_by_whoever_adopts_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run(0, try_number=2)
    with monkeypatch.context() as patch:
        patch.setattr(Execution, "publish", lambda self, attempt, **kwargs: (_ for _ in ()).throw(Killed))
        patch.setattr(Execution, "abandon", lambda *args, **kwargs: None)
        with pytest.raises(Killed):
            world.run(0, newer(), clear_number=1, try_number=3)
    late = world.checkpoint.attempts.latest(KEY)
    assert late is not None

    def dying(one: Path, other: Path) -> bool:
        file_sink_exchange(one, other)
        raise Killed

    file_sink_exchange = file_sink.exchange
    with monkeypatch.context() as patch:
        patch.setattr(file_sink, "exchange", dying)
        patch.setattr(Execution, "abandon", lambda *args, **kwargs: None)
        with pytest.raises(Killed):
            world.run(0, newer(), clear_number=1, try_number=4)
    wake_up(world, late)
    assert world.table() == {0: [101]}
    world.pipeline.sink.drop_stage(KEY, late.epoch)
    assert world.stages() == []
