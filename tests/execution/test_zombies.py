"""A try that slept through the end of its batch, and wakes up: it neither undoes a replay nor passes for one."""

from __future__ import annotations

import dataclasses
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.attempts import Attempts
from airflow_provider_microbatch.checkpoint.entries import Attempt, RunIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.replays import Replays
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import AttemptFencedError, PublishConflictError, TransformError
from airflow_provider_microbatch.execution.execution import Execution, Look
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest
from airflow_provider_microbatch.sinks import file as file_sink
from airflow_provider_microbatch.sinks.file import FileSink
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


def staged(
    world: World, run: RunIdentity, engine: InlineEngine | None = None, *, request: int | None = None
) -> Attempt:
    """An attempt of ``run`` that fell asleep just before publish.

    :param request: the replay request that it was made for.
    """
    engine = engine or InlineEngine()
    look = Look(planned=world.execution.load(KEY), newest=world.checkpoint.attempts.latest_epoch(KEY), request=request)
    attempt = world.execution.open_attempt(key=KEY, run=run, code=CODE, engine=engine, look=look)
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
    wake_up(world, staged(world, run_identity(0, clear_number=1), request=1))
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
    world.pipeline.sink.drop_stage(late.batch, late.epoch)
    assert world.stages() == []


def replays_and_dies(world: World, monkeypatch: pytest.MonkeyPatch, *, clear_number: int) -> None:
    """A clear of the run whose process is killed when its request is on record."""
    with monkeypatch.context() as patch:
        patch.setattr(Execution, "open_attempt", lambda *args, **kwargs: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            world.run(0, clear_number=clear_number)


def test_a_second_clear_while_a_replay_waits_is_a_request_of_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt of the first clear runs the code of its day: it answers the first request, not the second."""
    world.run(0)
    replays_and_dies(world, monkeypatch, clear_number=1)
    late = staged(world, run_identity(0, clear_number=1), request=1)
    replays_and_dies(world, monkeypatch, clear_number=2)
    assert [replay.epoch for replay in world.checkpoint.replays.pending(KEY)] == [1, 2]
    wake_up(world, late)
    assert [replay.epoch for replay in world.checkpoint.replays.pending(KEY)] == [2]
    world.run(0, newer(), clear_number=2, try_number=2)
    assert world.table() == {0: [101]}
    assert world.checkpoint.replays.pending(KEY) == []


def test_one_replay_answers_the_requests_before_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.run(0)
    replays_and_dies(world, monkeypatch, clear_number=1)
    world.run(0, newer(), clear_number=2)
    assert world.checkpoint.replays.pending(KEY) == []
    assert world.table() == {0: [101]}


def test_a_try_of_before_a_later_clear_replays_nothing_and_does_not_end_well(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run(0)
    replays_and_dies(world, monkeypatch, clear_number=2)
    engine = InlineEngine()
    with pytest.raises(AttemptFencedError, match="cleared again"):
        world.run(0, engine, clear_number=1)
    assert engine.jobs == []


def test_a_try_that_slept_before_it_took_its_epoch_does_not_pass_for_a_later_clear(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It slept between its look at the requests and its epoch; meanwhile the batch was cleared again."""
    world.run(0)
    real = Attempts.take_exactly

    def take_exactly(self: Attempts, attempt: Attempt) -> bool:
        monkeypatch.setattr(Attempts, "take_exactly", real)
        replays_and_dies(world, monkeypatch, clear_number=2)
        return real(self, attempt)

    monkeypatch.setattr(Attempts, "take_exactly", take_exactly)
    world.run(0, clear_number=1)
    assert [replay.epoch for replay in world.checkpoint.replays.pending(KEY)] == [2]


@pytest.mark.parametrize("sleeper", [run_identity(0, clear_number=1), run_identity(5, clear_number=1)])
def test_a_replay_that_was_overtaken_by_a_try_of_an_older_clear_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeper: RunIdentity
) -> None:
    """What it adopts does not answer its request, so it must not end well with it."""
    world = World(tmp_path)
    world.land(1)
    world.execution.plan(run_identity(9))
    world.run(0)
    replays_and_dies(world, monkeypatch, clear_number=1)
    engine = newer()

    def overtaken(job: object) -> None:
        engine.after_stage = lambda job: None
        wake_up(world, staged(world, sleeper, request=1))

    engine.after_stage = overtaken
    world.run(0, engine, clear_number=2)
    assert [job.epoch for job in engine.jobs] == [2, 4]
    assert world.table() == {0: [101]}
    assert world.checkpoint.replays.pending(KEY) == []


def test_a_replay_that_is_published_and_not_answered_is_not_run_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run(0)
    with monkeypatch.context() as patch:
        patch.setattr(Replays, "complete", lambda *args, **kwargs: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            world.run(0, newer(), clear_number=1)
    engine = InlineEngine()
    world.run(0, engine, clear_number=1, try_number=2)
    assert engine.jobs == []
    assert world.checkpoint.replays.pending(KEY) == []
    assert world.table() == {0: [101]}


def test_a_failed_replay_leaves_its_request_to_the_retry(world: World) -> None:
    world.run(0)
    with pytest.raises(TransformError):
        world.run(0, InlineEngine(transform=lambda sources: 1 / 0), clear_number=1)  # type: ignore[arg-type, return-value]
    assert len(world.checkpoint.replays.pending(KEY)) == 1
    world.run(0, newer(), clear_number=1, try_number=2)
    assert world.table() == {0: [101]}


def test_a_replay_that_loses_to_a_later_one_names_it_and_its_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.run(0)
    replays_and_dies(world, monkeypatch, clear_number=1)
    late = staged(world, run_identity(0, clear_number=1), request=1)
    real = FileSink.replace

    def replace(self: FileSink, batch: ExpectedBatch, epoch: int) -> Manifest:
        monkeypatch.setattr(FileSink, "replace", real)
        world.run(0, newer(), clear_number=2)
        staged_again(world, late)
        return real(self, batch, epoch)

    monkeypatch.setattr(FileSink, "replace", replace)
    with pytest.raises(PublishConflictError, match=r"The winner is attempt 3 of run 'run-0' of DAG 'orders'"):
        world.execution.publish(late)
    assert world.table() == {0: [101]}


def staged_again(world: World, attempt: Attempt) -> None:
    """Its driver goes on writing, though its stage was dropped."""
    InlineEngine().start(attempt.handle, world.execution.job(attempt, None), CODE)


def test_a_clear_that_meets_a_live_replay_of_another_run_fails_so_that_airflow_tries_again(world: World) -> None:
    """Batch 0 is planned by run 0 and committed by run 1: either one's clear replays it."""
    world.run(1)
    world.run(0, clear_number=1)
    request = world.checkpoint.replays.request(KEY, run=run_identity(1, clear_number=1), requested_ms=1)
    alive = staged(world, run_identity(1, clear_number=1), request=request.epoch)
    with pytest.raises(AttemptFencedError, match=r"attempt 3 of run 'run-1'[\s\S]*Replay request 3 is on record"):
        world.run(0, newer(), clear_number=2)
    wake_up(world, alive)
    world.run(0, newer(), clear_number=2, try_number=2)
    assert world.table() == {0: [101]}
    assert world.checkpoint.replays.pending(KEY) == []


def test_two_tries_of_one_clear_leave_one_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One has looked for requests before the other made its own, and dies behind it: nobody would answer a second one,
    and it would hold retention."""
    world.run(0, try_number=2)
    request = Replays.request

    def late(replays: Replays, key: BatchKey, **given: Any) -> None:
        monkeypatch.undo()
        world.run(0, newer(), clear_number=1, try_number=4)
        request(replays, key, **given)
        raise Killed

    monkeypatch.setattr(Replays, "request", late)
    with pytest.raises(Killed):
        world.run(0, newer(), clear_number=1, try_number=3)
    assert world.table() == {0: [101]}
    assert world.checkpoint.replays.pending(KEY) == []
    assert len(world.checkpoint.replays.all(KEY)) == 1


def restore(world: World, backup: Path) -> None:
    """The checkpoint as it was when it was copied; the table keeps what came after."""
    shutil.rmtree(world.root / "checkpoint")
    shutil.copytree(backup, world.root / "checkpoint")


@pytest.mark.parametrize("is_committed", [False, True], ids=["planned", "committed"])
def test_a_clear_replays_what_an_attempt_has_made_that_a_restored_backup_does_not_know(
    world: World, is_committed: bool
) -> None:
    """Its epoch is not free: an attempt of the same number would take the output of before for its own."""
    if is_committed:
        world.run(0, try_number=2)
    backup = world.root / "backup"
    shutil.copytree(world.root / "checkpoint", backup)
    world.run(0, clear_number=int(is_committed), try_number=3)
    restore(world, backup)
    world.run(0, newer(), clear_number=2, try_number=4)
    assert world.table() == {0: [101]}
    assert world.checkpoint.replays.pending(KEY) == []
    assert world.stages() == []
    assert verify_all(world.checkpoint) == []


def test_so_it_does_where_a_fence_has_the_number_of_that_attempt_since(world: World) -> None:
    """The janitor fences what the backup has of a dead attempt: no output is the fence's."""
    dead = staged(world, run_identity(0))
    backup = world.root / "backup"
    shutil.copytree(world.root / "checkpoint", backup)
    world.run(0, try_number=2)
    restore(world, backup)
    world.expire_leases()
    world.janitor()
    fence = world.checkpoint.attempts.latest(KEY)
    assert fence is not None
    assert (fence.is_fence, fence.epoch) == (True, dead.epoch + 1)
    world.run(0, newer(), clear_number=1, try_number=3)
    assert world.table() == {0: [101]}
    assert world.checkpoint.replays.pending(KEY) == []
    assert verify_all(world.checkpoint) == []


def made_at(minute: int, identity: RunIdentity) -> RunIdentity:
    """The try as Airflow made it then, which its id tells (UUID 7)."""
    ms = 1_700_000_000_000 + minute * 60_000
    return dataclasses.replace(identity, ti_id=str(uuid.UUID(int=ms << 80 | 7 << 76 | 2 << 62)))


@pytest.mark.parametrize("hash_of_sleeper", ["old", "new"])
def test_a_clear_that_slept_through_another_runs_clear_does_not_put_older_code_in_its_place(
    world: World, hash_of_sleeper: str
) -> None:
    """Run 0 planned the batch and run 1 committed it: a clear of either wants it again. Where the code is the same,
    nothing is lost, and both may replay."""

    def run(identity: RunIdentity, code_hash: str, engine: InlineEngine | None = None) -> None:
        code = dataclasses.replace(CODE, code_hash=code_hash)
        world.execution.run(run=identity, engine=engine or InlineEngine(), code=code, transform=None)

    run(made_at(1, run_identity(1)), "old")
    run(made_at(20, run_identity(1, clear_number=1, try_number=2)), "new", newer())
    sleeper = made_at(10, run_identity(0, clear_number=1, try_number=2))
    if hash_of_sleeper == "new":
        run(sleeper, "new", newer())
    else:
        with pytest.raises(AttemptFencedError, match="run 'run-1' of DAG 'orders' was cleared later"):
            run(sleeper, "old")
    assert world.table() == {0: [101]}
    run(made_at(30, run_identity(0, clear_number=1, try_number=3)), "new", newer())
    assert world.checkpoint.replays.pending(KEY) == []


@pytest.mark.parametrize("hash_of_sleeper", ["old", "new"])
def test_a_clear_that_was_asked_for_late_does_not_answer_a_later_try_that_waits_with_other_code(
    world: World, monkeypatch: pytest.MonkeyPatch, hash_of_sleeper: str
) -> None:
    """Run 0 planned the batch and run 1 committed it, and both are cleared. The try of run 0 is the older one, asks
    last, and so would answer both."""

    def run(identity: RunIdentity, code_hash: str, engine: InlineEngine | None = None) -> None:
        code = dataclasses.replace(CODE, code_hash=code_hash)
        world.execution.run(run=identity, engine=engine or InlineEngine(), code=code, transform=None)

    def killed(*args: object, **kwargs: object) -> None:
        raise Killed

    run(made_at(1, run_identity(1)), "old")
    with monkeypatch.context() as patch:
        patch.setattr(Execution, "open_attempt", killed)
        with pytest.raises(Killed):
            run(made_at(20, run_identity(1, clear_number=1, try_number=2)), "new", newer())
    sleeper = made_at(10, run_identity(0, clear_number=1, try_number=2))
    if hash_of_sleeper == "new":
        run(sleeper, "new", newer())
    else:
        with pytest.raises(AttemptFencedError, match=r"run 'run-1' of DAG 'orders' was cleared later .* and waits"):
            run(sleeper, "old")
        assert [replay.epoch for replay in world.checkpoint.replays.pending(KEY)] == [1, 2]
        run(made_at(25, run_identity(1, clear_number=1, try_number=3)), "new", newer())
        assert world.table() == {0: [101]}
        run(made_at(30, run_identity(0, clear_number=1, try_number=3)), "new", newer())
    assert world.table() == {0: [101]}
    assert world.checkpoint.replays.pending(KEY) == []


def test_a_listing_that_misses_the_attempt_itself_fences_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a bucket, just behind the put."""
    latest, missed = Attempts.latest_epoch, list[BatchKey]()

    def missing(self: Attempts, key: BatchKey) -> int:
        found = latest(self, key)
        if found == 1:
            missed.append(key)
            return 0
        return found

    world.land(0)
    world.run(0, InlineEngine(before_stage=lambda _: monkeypatch.setattr(Attempts, "latest_epoch", missing)))
    assert missed
    assert list(world.table()) == [0]
