"""Who is alive at a batch: a run leaves the batch of another run alone as long as that run gives a sign of life."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.attempts import Attempts
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.leases import Leases
from airflow_provider_microbatch.exceptions import (
    AttemptFencedError,
    BatchInProgressError,
    DefinitionError,
    OutrunError,
)
from airflow_provider_microbatch.execution.engine import EngineState, Handle
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.liveness import ORPHAN_SECONDS, no_engine
from airflow_provider_microbatch.execution.table_place import make_ready
from airflow_provider_microbatch.upkeep.commands.alive import alive
from tests.execution.world import CODE, World, run_identity
from tests.support.inline_engine import InlineEngine, local
from tests.support.leases import expire_leases

KEY = BatchKey("live", 0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.land(1)
    return world


def opened(world: World, number: int = 0, **kwargs: int) -> Attempt:
    """An attempt of that run, whose process then dies."""
    run = run_identity(number, **kwargs)
    planned = world.execution.plan(run)
    assert planned is not None
    return world.execution.open_attempt(key=planned.key, run=run, code=CODE, engine=InlineEngine())


def planned_by(world: World, number: int) -> BatchKey:
    planned = world.execution.plan(run_identity(number))
    assert planned is not None
    return planned.key


def test_its_lease_is_renewed_from_the_moment_its_epoch_is_taken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """To stop the Spark of the attempt before, or to tell its hooks, may take longer than a lease runs."""
    renewed = threading.Event()
    real = Leases.renew

    def renew(self: Leases, key: BatchKey, epoch: int, **kwargs: Any) -> None:
        real(self, key, epoch, **kwargs)
        if threading.current_thread() is not threading.main_thread() and epoch == 2:
            renewed.set()

    class Slow(InlineEngine):
        def cancel(self, handle: Handle) -> bool:
            assert renewed.wait(30), "nobody renewed the lease while the attempt before was being stopped"
            return super().cancel(handle)

    opened(world)
    monkeypatch.setattr(Leases, "renew", renew)
    execution = Execution(pipeline=world.pipeline, checkpoint=world.checkpoint, lease_seconds=0.3)
    assert execution.open_attempt(key=KEY, run=run_identity(0), code=CODE, engine=Slow()).epoch == 2


def test_the_pipeline_says_how_long_a_lease_runs(world: World) -> None:
    world.options["lease_seconds"] = 600
    attempt = opened(world)
    assert 500 < world.checkpoint.leases.remaining_seconds(KEY, attempt.epoch) <= 600
    expire_leases(world.root / "checkpoint", 300)
    with pytest.raises(BatchInProgressError, match="its lease runs for another"):
        world.run(1)
    assert world.janitor().of("alive") == ["live/0 attempt 1"]
    expire_leases(world.root / "checkpoint", 300)
    assert world.run(1) is not None


@pytest.mark.parametrize("seconds", [0, 4.9, -60, "60", True, float("inf"), None])
def test_a_lease_that_is_no_time_is_refused_where_it_is_written(world: World, seconds: Any) -> None:
    world.options["lease_seconds"] = seconds
    with pytest.raises(DefinitionError, match="pipeline 'orders': lease_seconds must be a number of seconds from 5 on"):
        assert world.pipeline


class Running(InlineEngine):
    """An engine that says of everything that it runs."""

    def poll(self, handle: Handle) -> EngineState:
        return EngineState.RUNNING


def test_another_run_leaves_a_live_batch_alone_and_names_who_is_at_it(world: World) -> None:
    opened(world)
    before, engine = world.files(), InlineEngine()
    with pytest.raises(BatchInProgressError, match=r"live/0 is in progress: attempt 1 of run 'run-0' of DAG 'orders'"):
        world.run(1, engine)
    assert (engine.jobs, engine.cancelled) == ([], [])
    assert world.files() == before


def test_when_the_lease_has_run_out_another_run_takes_over(world: World) -> None:
    dead = opened(world)
    world.expire_leases()
    engine = InlineEngine()
    summary = world.run(1, engine)
    assert summary is not None
    assert (summary.key, summary.epoch) == (KEY, 2)
    assert engine.cancelled == [dead.handle["tag"]]


def test_an_attempt_without_an_end_is_fenced_beside_its_stage_for_its_spark_to_see(world: World) -> None:
    """Its driver may be where no cancel reaches it; one that ended by itself has nobody to tell."""
    dead = opened(world)
    make_ready(world.checkpoint, world.pipeline.sink, dead)  # as its job was about to be started
    world.expire_leases()
    world.run(1)
    path = world.pipeline.sink.stage(world.place(), dead.epoch).fence
    assert path is not None
    assert "a later attempt" in local(path).read_text()  # and no word out of the checkpoint
    winner = world.pipeline.sink.stage(world.place(), 2).fence
    assert winner is not None
    assert not local(winner).exists()
    assert world.janitor().of("fence removed") == []
    assert world.janitor(grace_seconds=0).of("fence removed") == [str(local(path))]
    assert not local(path).exists()
    assert world.table() == {0: [1]}


def test_while_the_engine_says_that_it_runs_another_run_leaves_it_alone(world: World) -> None:
    opened(world)
    world.expire_leases()
    with pytest.raises(BatchInProgressError, match="inline says that it runs"):
        world.run(1, Running())


def orphaned(world: World, seconds: float) -> Attempt:
    """The holder died so long ago, and its driver hangs: it runs, and answers nothing."""
    attempt = opened(world)
    pass_by(world, seconds)
    return attempt


def pass_by(world: World, seconds: float) -> None:
    """So much time passes for the attempt, as far as the store's clock can tell."""
    expire_leases(world.root / "checkpoint", seconds)
    epoch = world.root / "checkpoint" / "attempts" / "live" / "0" / "1"
    os.utime(epoch, (epoch.stat().st_mtime - seconds,) * 2)


def test_an_orphan_that_never_ends_holds_the_pipeline_for_an_hour_and_not_for_ever(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    orphan, engine = orphaned(world, ORPHAN_SECONDS - 600), Running()
    with pytest.raises(BatchInProgressError, match="renewed its lease for 50 min, and counts as dead in 10 min"):
        world.run(1, engine)
    decision = world.execution.should_fire(run_identity(1), engine_of=lambda _: engine)
    assert not decision.fire
    assert "counts as dead in" in decision.reason
    assert world.janitor(engine).of("alive") == ["live/0 attempt 1"]
    pass_by(world, 1200)
    assert world.execution.should_fire(run_identity(1), engine_of=lambda _: engine).fire
    assert world.run(1, engine).epoch == 2  # type: ignore[union-attr]
    assert engine.cancelled == [orphan.handle["tag"]]
    assert "nobody has renewed its lease for 70 minutes" in caplog.text
    assert world.table() == {0: [1]}


def test_the_janitor_stops_an_orphan_too(world: World) -> None:
    orphan, engine = orphaned(world, ORPHAN_SECONDS + 60), Running()
    world.janitor(engine)
    assert engine.cancelled == [orphan.handle["tag"]]


def test_a_command_waits_for_an_orphan_however_long(world: World) -> None:
    orphaned(world, 10 * ORPHAN_SECONDS)
    (found,) = alive(world.checkpoint, lambda _: Running())
    assert "inline says that it runs" in found


def test_the_same_runs_retry_takes_over_at_once_and_stops_the_driver_before(world: World) -> None:
    before = opened(world)
    engine = InlineEngine()
    summary = world.run(0, engine, try_number=2)
    assert summary is not None
    assert summary.epoch == 2
    assert engine.cancelled == [before.handle["tag"]]


def test_an_attempt_that_has_ended_is_not_alive(world: World) -> None:
    attempt = opened(world)
    world.execution.abandon(attempt, state="failed", error=RuntimeError("no"), engine=InlineEngine())
    assert world.run(1).epoch == 2  # type: ignore[union-attr]


def test_a_live_batch_of_another_run_does_not_fire_and_fires_when_its_lease_has_run_out(world: World) -> None:
    opened(world)
    decision = world.execution.should_fire(run_identity(1))
    assert not decision.fire
    assert "attempt 1 of run 'run-0'" in decision.reason
    assert world.execution.should_fire(run_identity(0)).fire, "its own run's retry goes on"
    world.expire_leases()
    assert world.execution.should_fire(run_identity(1)).fire
    assert not world.execution.should_fire(run_identity(1), engine_of=lambda name: Running()).fire


def test_a_run_with_a_batch_of_its_own_fires_although_another_run_is_alive_at_the_next(world: World) -> None:
    world.run(0)
    world.land(2)
    opened(world, 1)
    assert world.execution.should_fire(run_identity(0)).fire


def test_a_parked_stage_is_no_obstacle_for_another_run(world: World) -> None:
    attempt = opened(world)
    world.execution.keep(attempt, seconds=3600)
    assert world.execution.should_fire(run_identity(1)).fire
    assert world.run(1).epoch == 2  # type: ignore[union-attr]


def test_the_holder_renews_its_lease_for_as_long_as_the_job_runs(world: World) -> None:
    """The job takes three times the lease's time to live, and counts as alive until its end."""
    lapsed: list[bool] = []
    leases = world.checkpoint.leases
    renewed = threading.Event()

    def work(job: object) -> None:
        seen = set()
        deadline = time.monotonic() + 30
        while len(seen) < 9 and time.monotonic() < deadline:
            with suppress(FileNotFoundError):
                files = (world.root / "checkpoint" / "leases" / "live").glob("0-1-*")
                seen |= {(path.name, path.stat().st_mtime_ns) for path in files}
            lapsed.append(leases.remaining_seconds(KEY, 1) == 0)
        if len(seen) == 9:
            renewed.set()

    execution = Execution(pipeline=world.pipeline, checkpoint=world.checkpoint, lease_seconds=0.9)
    run = run_identity(0)
    execution.run(run=run, engine=InlineEngine(before_stage=work), code=CODE, transform=None)
    assert renewed.is_set()
    assert not any(lapsed)
    assert leases.unfinished() == [], "a batch that is done leaves no lease behind"
    assert not any(thread.name.startswith("lease ") for thread in threading.enumerate())


def test_an_attempt_that_is_fenced_while_it_runs_is_told_to_stop(world: World) -> None:
    class Stoppable(InlineEngine):
        def __init__(self) -> None:
            super().__init__(before_stage=self.fenced)
            self.stopped = threading.Event()

        def fenced(self, job: object) -> None:
            opened(world, 0, try_number=2)
            assert self.stopped.wait(timeout=60)

        def cancel(self, handle: Handle) -> bool:
            self.stopped.set()
            return super().cancel(handle)

    execution = Execution(pipeline=world.pipeline, checkpoint=world.checkpoint, lease_seconds=0.3)
    with pytest.raises(AttemptFencedError):
        execution.run(run=run_identity(0), engine=Stoppable(), code=CODE, transform=None)
    assert world.table() == {}


def test_of_two_runs_that_both_find_the_batch_free_one_gets_it_and_the_other_names_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look of one run and its epoch the other begins: the look must be worth nothing then."""
    world.execution.plan(run_identity(0))
    real = Attempts.take_exactly

    def take_exactly(self: Attempts, attempt: Attempt) -> bool:
        monkeypatch.setattr(Attempts, "take_exactly", real)
        opened(world, 0)
        return real(self, attempt)

    monkeypatch.setattr(Attempts, "take_exactly", take_exactly)
    engine = InlineEngine()
    with pytest.raises(BatchInProgressError, match=r"attempt 1 of run 'run-0' of DAG 'orders' is alive"):
        world.run(1, engine)
    assert (engine.jobs, engine.cancelled) == ([], [])
    assert [attempt.run for attempt in world.checkpoint.attempts.all(KEY)] == [run_identity(0)]


def test_a_run_that_was_beaten_to_a_batch_that_is_done_by_now_plans_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.execution.plan(run_identity(0))
    real = Attempts.take_exactly

    def take_exactly(self: Attempts, attempt: Attempt) -> bool:
        monkeypatch.setattr(Attempts, "take_exactly", real)
        world.run(0)
        world.land(2)
        return real(self, attempt)

    monkeypatch.setattr(Attempts, "take_exactly", take_exactly)
    summary = world.run(1)
    assert summary is not None
    assert summary.key.id == 1
    assert world.table() == {0: [1], 1: [2]}


def test_who_is_beaten_to_an_epoch_leaves_its_winners_lease_as_it_is(world: World) -> None:
    look = world.execution.look(planned_by(world, 0), run_identity(1), engine_of=no_engine)
    winner = opened(world)
    world.execution.keep(winner, seconds=3600)
    with pytest.raises(OutrunError, match="attempt 1 of run 'run-0'"):
        world.execution.open_attempt(key=KEY, run=run_identity(1), code=CODE, engine=InlineEngine(), look=look)
    assert world.checkpoint.leases.remaining_seconds(KEY, 1, parked=True) > 3000


def test_a_try_of_before_a_clear_leaves_the_live_attempt_of_the_clear_alone(world: World) -> None:
    opened(world, 0, clear_number=1)
    with pytest.raises(BatchInProgressError, match="attempt 1 of run 'run-0'"):
        world.run(0)


def test_a_fenced_attempt_names_the_attempt_and_the_run_that_fenced_it(world: World) -> None:
    late = opened(world)
    world.expire_leases()
    opened(world, 3)
    with pytest.raises(AttemptFencedError, match=r"attempt 1 is fenced by attempt 2 of run 'run-3' of DAG 'orders'"):
        world.execution.publish(late)
    end = world.checkpoint.attempts.ended(KEY, 1)
    assert end is not None
    assert "attempt 2 of run 'run-3'" in str(end.error)
