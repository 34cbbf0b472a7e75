"""What a task's own process does for an attempt that ``execute`` has left without an end."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.entries import Attempt, CommitEntry
from airflow_provider_microbatch.exceptions import AttemptCanceledError
from airflow_provider_microbatch.execution.settle import settle
from tests.execution.world import KEY, World, run_identity
from tests.support.hooks import lines
from tests.support.inline_engine import InlineEngine

ERROR = OSError("the disk is full")


def end(world: World, error: BaseException | None = ERROR, *, number: int = 0, clear_number: int = 0) -> InlineEngine:
    """The try of task run ``number`` has ended with ``error``."""
    engine = InlineEngine()
    ti_id = run_identity(number, clear_number=clear_number).ti_id
    assert ti_id is not None
    settle(world.execution, ti_id=ti_id, error=error, engine_of=lambda name: engine)
    return engine


def commit(world: World, attempt: Attempt) -> None:
    """The attempt is published and committed, and its process stopped there."""
    world.execution.publish(attempt)
    world.checkpoint.commit_log.add(attempt.key.id, CommitEntry(epoch=attempt.epoch))


def test_an_attempt_without_an_end_gets_one_at_once(world: World, diary: Path) -> None:
    dead = world.staged()
    engine = end(world)
    assert engine.cancelled == [dead.handle["tag"]]
    assert world.stages() == []
    assert lines(diary) == ["diary created live/0 1", "diary failed live/0 1"]
    assert "the disk is full" in diary.read_text()
    assert world.checkpoint.leases.unfinished() == []
    assert world.janitor().actions == []
    world.run(1)
    assert world.table() == {0: [1]}


def test_one_that_was_told_to_stop_is_canceled(world: World, diary: Path) -> None:
    world.staged()
    end(world, AttemptCanceledError("stopped"))
    assert lines(diary)[1:] == ["diary canceled live/0 1"]


@pytest.mark.parametrize("error", [None, ERROR], ids=["success", "failed"])
def test_the_commit_log_outranks_what_airflow_says(world: World, diary: Path, error: BaseException | None) -> None:
    commit(world, world.staged())
    for _ in range(2):
        end(world, error)
    assert lines(diary) == ["diary created live/0 1", "diary finished live/0 1"]
    assert world.table() == {0: [1]}
    assert world.checkpoint.leases.unfinished() == []


def test_an_attempt_that_was_given_up_and_is_committed_all_the_same_is_finished_last(world: World, diary: Path) -> None:
    late = world.staged()
    world.expire_leases()
    Path(f"{diary}.fails").write_text("diary failed")
    world.janitor()
    Path(f"{diary}.fails").unlink()
    world.checkpoint.commit_log.add(0, CommitEntry(epoch=late.epoch))
    end(world)
    assert lines(diary)[-1] == "diary finished live/0 1"


def test_what_a_later_attempt_has_fenced_is_left_to_it(world: World, diary: Path) -> None:
    late = world.staged()
    # The other process has taken its epoch, and has not come further.
    world.checkpoint.attempts.take_exactly(
        Attempt(key=KEY, epoch=2, handle={}, run=run_identity(0, try_number=2), code={}, started_ms=1)
    )
    engine = end(world)
    assert engine.cancelled == []
    assert world.stages() == [f"{KEY} attempt {late.epoch}"]
    assert lines(diary) == ["diary created live/0 1"]


def test_what_is_published_waits_for_its_commit(world: World, diary: Path) -> None:
    world.execution.publish(world.staged())
    end(world)
    assert lines(diary) == ["diary created live/0 1"]
    world.expire_leases()
    world.run(1)
    assert lines(diary)[1:] == ["diary finished live/0 1"]
    assert world.table() == {0: [1]}


def test_a_stage_that_waits_for_its_audits_outlives_its_task(world: World) -> None:
    world.execution.keep(world.staged(), seconds=7200)
    end(world, None)
    assert world.stages() == ["live/0 attempt 1"]


def test_attempts_of_other_tasks_are_not_touched(world: World, diary: Path) -> None:
    world.staged()
    before = world.files()
    end(world, number=1)
    assert world.files() == before
    assert world.stages() == ["live/0 attempt 1"]


def test_the_output_that_a_failed_replay_did_not_replace_stays(world: World, diary: Path) -> None:
    world.run(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_provider_microbatch.execution.execution.Execution.abandon", lambda *_, **__: None)
        with pytest.raises(OSError, match="disk is full"):
            world.run(0, InlineEngine(after_stage=_fail), clear_number=1)
    assert world.stages() == ["live/0 attempt 2"]
    end(world, clear_number=1)
    assert world.stages() == []
    assert world.table() == {0: [1]}
    assert lines(diary)[2:] == ["diary created live/0 2", "diary failed live/0 2"]


def _fail(_: object) -> None:
    raise ERROR
