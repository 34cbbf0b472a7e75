"""What a clear asks for, however it was made, and what is no clear: a retry, another run under the same id."""

from __future__ import annotations

import dataclasses
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.replays import Replay, Replays
from airflow_provider_microbatch.exceptions import (
    BatchPurgedError,
    MicroBatchError,
    NothingInIntervalError,
    TransformError,
)
from airflow_provider_microbatch.execution.summary import BatchSummary, RunSummary, summarize
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.sources.file.open import OpenFileSource
from airflow_provider_microbatch.upkeep.commands.withdraw_clear import plan_withdraw_clear
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.maintaining import applied
from tests.execution.world import CODE, KEY, World, run_identity
from tests.support.inline_engine import InlineEngine
from tests.support.whose import expected_batch


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def newer() -> InlineEngine:
    """The code after it was mended."""
    return InlineEngine(transform=lambda sources: [{"id": row["id"] + 100} for row in sources["orders"]])


def run(world: World, identity: RunIdentity, engine: InlineEngine | None = None) -> BatchSummary | RunSummary | None:
    return world.execution.run(run=identity, engine=engine or InlineEngine(), code=CODE, transform=None)


def cleared(number: int, *, first_try: int = 2, try_number: int = 2) -> RunIdentity:
    """A try of run ``number`` after a clear that left the run's clear number, as REST makes it."""
    return dataclasses.replace(run_identity(number, try_number=try_number), first_try=first_try)


def first(number: int) -> RunIdentity:
    return dataclasses.replace(run_identity(number), first_try=1)


def committed_two(world: World) -> None:
    """Run 0 commits batch 0 and its process dies; run 1 commits batch 1; the retry of run 0 makes batch 2."""
    for batch, identity in enumerate([first(0), first(1), dataclasses.replace(first(0), try_number=2, ti_id="ti-r")]):
        world.land(batch)
        run(world, identity)


def test_a_clear_that_leaves_the_clear_number_replays(world: World) -> None:
    for number in range(3):
        world.land(number)
        run(world, first(number))
    run(world, cleared(1), newer())
    assert world.table() == {0: [0], 1: [101], 2: [2]}
    assert world.checkpoint.offset_log.ids() == [0, 1, 2]


def test_its_retry_does_not_replay_once_more_and_the_next_clear_does(world: World) -> None:
    world.land(1)
    run(world, first(0))
    run(world, cleared(0), newer())
    engine = InlineEngine()
    run(world, cleared(0, try_number=3), engine)
    assert engine.jobs == []
    run(world, cleared(0, first_try=4, try_number=4), engine)
    assert len(engine.jobs) == 1
    assert world.table() == {0: [1]}


@pytest.mark.parametrize("again", [cleared(0), run_identity(0, clear_number=1)], ids=["no number", "a clear number"])
def test_a_cleared_run_replays_all_that_it_committed(world: World, again: RunIdentity) -> None:
    committed_two(world)
    summary = run(world, again, newer())
    assert isinstance(summary, RunSummary)
    assert summary.label == "batches live/0, live/2 · 2 rows"
    assert world.table() == {0: [100], 1: [1], 2: [102]}
    assert world.checkpoint.offset_log.ids() == [0, 1, 2]


def slot(number: int, index: int, *, clear_number: int = 0) -> RunIdentity:
    """A slot of run ``number``."""
    identity = run_identity(number, clear_number=clear_number)
    return dataclasses.replace(identity, map_index=index, ti_id=f"{identity.ti_id}-{index}")


def test_a_clear_replays_what_the_task_has_made_before_it_had_slots(world: World) -> None:
    world.land(0)
    run(world, run_identity(0))
    run(world, slot(0, 0, clear_number=1), newer())
    assert world.table() == {0: [100]}
    engine = InlineEngine()
    assert run(world, slot(0, 1, clear_number=1), engine) is None
    assert engine.jobs == []


def test_a_clear_replays_what_slots_have_made_that_the_task_has_no_more(world: World) -> None:
    for index in range(3):
        world.land(index)
        run(world, slot(0, index))
    run(world, run_identity(0, clear_number=1), newer())
    assert world.table() == {0: [100], 1: [101], 2: [102]}


def test_the_sensor_of_a_cleared_run_fires_for_what_its_slots_have_made(world: World) -> None:
    for index in range(3):
        world.land(index)
        run(world, slot(0, index))
    sensor = dataclasses.replace(run_identity(0, clear_number=1), task_id="new_data", ti_id="ti-sensor")
    decision = world.execution.should_fire(sensor)
    assert (decision.fire, decision.own) == (True, True), decision.reason


@pytest.mark.parametrize("again", [cleared(0), run_identity(0, clear_number=1)], ids=["no number", "a clear number"])
@pytest.mark.parametrize("made_by", [0, 1], ids=["itself", "another run"])
def test_a_clear_replays_what_was_published_and_not_committed_yet(
    world: World, again: RunIdentity, made_by: int
) -> None:
    world.land(1)
    world.execution.plan(first(0))
    attempt = world.staged(run=first(made_by))
    world.pipeline.sink.publish(expected_batch(world.checkpoint, attempt.key), attempt.epoch)
    world.expire_leases()
    run(world, again, newer())
    assert world.table() == {0: [101]}
    assert world.checkpoint.replays.pending(attempt.key) == []
    run(world, dataclasses.replace(again, try_number=again.try_number + 1, ti_id="ti-retry"))
    assert world.table() == {0: [101]}


def at(identity: RunIdentity, ms: int) -> RunIdentity:
    """The try as Airflow made it at that time, which its id tells (UUID 7)."""
    return dataclasses.replace(identity, ti_id=str(uuid.UUID(int=ms << 80 | 7 << 76 | 2 << 62)))


def test_a_try_of_before_another_runs_clear_does_not_answer_for_it(world: World) -> None:
    """Both runs were at the batch, and both are cleared. What the second clear is for the first one's try has not."""

    def die(_: Job) -> None:
        raise Killed

    before, hour = world.clock, 60 * 60 * 1000
    world.land(1)
    world.execution.plan(at(first(0), before))
    run(world, at(first(1), before))
    slow = at(run_identity(0, clear_number=1), before)
    for late in (slow, at(run_identity(1, clear_number=1), before + 2 * hour)):
        world.clock += hour
        with pytest.raises(Killed):
            run(world, late, InlineEngine(before_stage=die))
        world.expire_leases()
    run(world, at(run_identity(0, clear_number=1, try_number=2), before + hour))
    world.expire_leases()
    run(world, at(run_identity(1, clear_number=1, try_number=2), world.clock + hour), newer())
    assert world.table() == {0: [101]}
    assert world.checkpoint.replays.pending(KEY) == []


def test_a_replay_of_several_that_died_goes_on_with_the_rest(world: World) -> None:
    committed_two(world)
    engine = newer()

    def die_at_the_second(job: Job) -> None:
        if job.batch_id == 2:
            raise Killed

    engine.before_stage = die_at_the_second
    with pytest.raises(Killed):
        run(world, run_identity(0, clear_number=1), engine)
    assert world.table() == {0: [100], 1: [1], 2: [2]}
    retry = newer()
    run(world, run_identity(0, clear_number=1, try_number=4), retry)
    assert [job.batch_id for job in retry.jobs] == [2]
    assert world.table() == {0: [100], 1: [1], 2: [102]}


def test_a_clear_reads_the_log_only_back_to_where_its_run_began(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    day = 24 * 60 * 60 * 1000
    for number in range(6):
        world.clock += 2 * day
        world.land(number)
        run(world, first(number))
    read: list[int] = []
    logs = type(world.checkpoint.commit_log)
    real = logs.get

    def counting(self: Any, batch_id: int) -> Any:
        read.append(batch_id)
        return real(self, batch_id)

    monkeypatch.setattr(logs, "get", counting)
    began = "2023-11-24T22:00:00+00:00"  # just before run 4
    run(world, dataclasses.replace(run_identity(4, clear_number=1), run_after=began), newer())
    assert world.table()[4] == [104]
    assert not {1, 2} & set(read)


def remade(number: int) -> RunIdentity:
    """The first try of run ``number`` after it was deleted and made again under its id."""
    return dataclasses.replace(first(number), ti_id="ti-again", run_started="2026-02-01T00:00:00+00:00")


def original(number: int) -> RunIdentity:
    return dataclasses.replace(first(number), run_started="2026-01-01T00:00:00+00:00")


def test_a_run_that_was_deleted_and_made_again_is_another_run(world: World) -> None:
    world.land(1)
    run(world, original(0))
    assert run(world, remade(0)) is None
    world.land(2)
    run(world, remade(0))
    assert world.table() == {0: [1], 1: [2]}


def test_a_backfill_made_again_under_its_run_id_is_not_green_without_work(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path)
    world.land_at(0.5, 1)
    world.backfill(hour(0), original(0))
    with pytest.raises(NothingInIntervalError, match=r"on_overlap='replay'"):
        world.backfill(hour(0), remade(0), newer())
    assert world.ids() == [1]
    world.options["on_overlap"] = "replay"
    (batch,) = world.backfill(hour(0), remade(0), newer())
    assert world.ids() == [101]
    engine = newer()
    world.backfill(hour(0), dataclasses.replace(remade(0), try_number=2, ti_id="ti-retry"), engine)
    assert engine.jobs == []
    assert world.checkpoint.replays.pending(BatchKey(batch.key.lane, 0)) == []


def test_retention_keeps_a_batch_that_a_clear_waits_for(tmp_path: Path) -> None:
    world = World(tmp_path, min_batches_to_retain=2)
    world.land(0)
    run(world, first(0))
    with pytest.raises(TransformError):
        world.run(0, InlineEngine(transform=lambda sources: 1 / 0), clear_number=1)  # type: ignore[arg-type, return-value]
    for number in range(1, 6):
        world.land(number)
        run(world, first(number))
    assert world.checkpoint.offset_log.ids() == list(range(6))
    run(world, run_identity(0, clear_number=1, try_number=3), newer())
    assert world.table()[0] == [100]
    world.land(6)
    run(world, first(6))
    assert world.checkpoint.offset_log.ids() == [5, 6]


@pytest.mark.parametrize("by", ["withdraw-clear", "its retry"])
def test_a_request_of_before_a_later_clear_is_not_waited_for_either_once_that_one_is_withdrawn(
    tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its try slept through the later clear, asked behind it, and died: nobody answers it, and it would hold
    retention."""
    world = World(tmp_path, min_batches_to_retain=2)
    world.land(0)
    world.run(0)
    for clear_number in (2, 1):
        world.checkpoint.replays.request(KEY, run=run_identity(0, clear_number=clear_number), requested_ms=world.clock)
    if by == "withdraw-clear":
        applied(world, lambda drafting: plan_withdraw_clear(drafting, KEY))
    else:
        with monkeypatch.context() as patch:
            patch.setattr(OpenFileSource, "not_replayable", lambda *_: "its files were cleaned")
            with pytest.raises(MicroBatchError, match="files were cleaned"):
                world.run(0, clear_number=2, try_number=2)
    assert world.checkpoint.replays.pending(KEY) == []
    for number in range(1, 5):
        world.land(number)
        world.run(number)
    assert world.checkpoint.offset_log.ids() == [3, 4]


def test_a_clear_of_a_batch_that_retention_removed_says_so_and_makes_no_other(tmp_path: Path) -> None:
    world = World(tmp_path, min_batches_to_retain=2)
    for number in range(4):
        world.land(number)
        run(world, first(number))
    world.land(9)
    with pytest.raises(BatchPurgedError, match=r"begins with batch 2[\s\S]*min_batches_to_retain"):
        world.run(0, clear_number=1)
    late = dataclasses.replace(run_identity(7, clear_number=1), run_after="2030-01-01T00:00:00+00:00")
    run(world, late)
    assert world.table()[4] == [9]


def test_so_it_does_where_the_schedulers_clock_is_ahead_of_the_workers(tmp_path: Path) -> None:
    world, ahead_ms = World(tmp_path, min_batches_to_retain=2), 30_000

    def at(number: int, clear_number: int = 0) -> RunIdentity:
        began = datetime.fromtimestamp((began_ms + number * 10_000 + ahead_ms) / 1000, UTC)
        return dataclasses.replace(run_identity(number, clear_number=clear_number), run_after=began.isoformat())

    began_ms = world.clock
    for number in range(5):
        world.clock = began_ms + number * 10_000
        world.land(number)
        run(world, at(number))
    world.land(9)
    with pytest.raises(BatchPurgedError, match="begins with batch 3"):
        run(world, at(1, clear_number=1))
    assert 5 not in world.table()


@pytest.mark.parametrize("kept", [2, 4])
def test_a_clear_of_a_run_only_some_of_whose_batches_are_kept_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: int
) -> None:
    world = World(tmp_path, min_batches_to_retain=kept)
    for number in range(4):
        world.land(number)
        run(world, dataclasses.replace(first(0), map_index=number, ti_id=f"ti-{number}"))
    caplog.clear()
    run(world, dataclasses.replace(run_identity(0, clear_number=1), map_index=-1, ti_id="cleared"), newer())
    assert [number for number, ids in world.table().items() if ids == [number + 100]] == [0, 1, 2, 3][-kept:]
    told = [one.getMessage() for one in caplog.records if "min_batches_to_retain" in one.getMessage()]
    assert ["begins with batch 2" in one for one in told] == ([True] if kept == 2 else [])


def test_a_summary_says_who_finished_the_batch_and_whether_anybody_is_at_it(world: World) -> None:
    world.land(1)
    world.staged(0)
    assert summarize(world.checkpoint, KEY).state == "running"
    world.expire_leases()
    dead = summarize(world.checkpoint, KEY)
    assert (dead.state, dead.run and dead.run.run_id) == ("planned", "run-0")
    assert "no sign of life" in str(dead.error)
    resumed = world.run(1)
    assert resumed is not None
    assert [one.run_id for one in (resumed.run, resumed.planned_by) if one] == ["run-1", "run-0"]
    world.run(1, clear_number=1, try_number=2)
    replayed = summarize(world.checkpoint, KEY).run
    assert replayed is not None
    assert (replayed.run_id, replayed.try_number) == ("run-1", 2)


def test_a_clear_whose_batch_retention_took_meanwhile_does_not_keep_the_log_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, min_batches_to_retain=3)
    for number in range(5):
        world.land(number)
        world.run(number)
    request = Replays.request

    def late(replays: Replays, key: BatchKey, **how: Any) -> Replay:
        for number in range(5, 8):
            world.land(number)
            world.run(number)
        return request(replays, key, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Replays, "request", late)
        with pytest.raises(MicroBatchError):
            world.run(2, clear_number=1)
    world.expire_leases()
    for number in range(8, 12):
        world.land(number)
        world.run(number)
    assert len(world.checkpoint.offset_log.ids()) == 3
    assert world.checkpoint.replays.epochs.ids(LIVE) == []
