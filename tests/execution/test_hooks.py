"""Job status hooks: who is told what, when, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.deliveries import Deliveries
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import AttemptCanceledError, DefinitionError, HookError, TransformError
from airflow_provider_microbatch.job_status import JobStatusHook, check_hook
from airflow_provider_microbatch.pipeline import Pipeline
from tests.execution.world import CODE, KEY, Killed, World, run_identity
from tests.support.hooks import Diary, lines
from tests.support.inline_engine import InlineEngine


@pytest.fixture
def world(world: World, diary: Path) -> World:
    """Two hooks, so that an order can be seen."""
    world.options["hooks"] = (Diary(str(diary), "a"), Diary(str(diary), "b"))
    return world


def test_created_comes_before_the_engine_and_finished_after_the_commit(world: World, diary: Path) -> None:
    seen: list[list[str]] = []
    world.run(0, InlineEngine(before_stage=lambda job: seen.append(lines(diary))))
    assert seen == [["a created live/0 1", "b created live/0 1"]]
    assert lines(diary) == [*seen[0], "a finished live/0 1", "b finished live/0 1"]
    assert world.checkpoint.leases.unfinished() == []


def test_finished_is_told_when_the_commit_entry_is_there(
    world: World, diary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed: list[object] = []
    monkeypatch.setattr(
        Diary, "on_finished", lambda self, context: committed.append(world.checkpoint.commit_log.get(context.key.id))
    )
    world.run(0)
    assert len(committed) == 2
    assert None not in committed


def test_created_is_told_once_although_the_attempt_is_begun_again(world: World, diary: Path) -> None:
    run, engine = run_identity(0), InlineEngine()
    world.execution.plan(run)
    attempt = world.execution.open_attempt(key=KEY, run=run, code=CODE, engine=engine)
    job = world.execution.job(attempt, None)
    for _ in range(2):
        world.execution.run_attempt(attempt=attempt, job=job, engine=engine, code=CODE)
    assert lines(diary) == ["a created live/0 1", "b created live/0 1"]


def test_a_failed_attempt_is_told_why(world: World, diary: Path) -> None:
    with pytest.raises(TransformError):
        world.run(0, InlineEngine(transform=lambda sources: 1 / 0))  # type: ignore[arg-type, return-value]
    assert lines(diary)[2:] == ["a failed live/0 1", "b failed live/0 1"]
    assert "transform 'jobs/orders.py:transform' failed" in diary.read_text()
    world.run(0, try_number=2)
    assert lines(diary)[-2:] == ["a finished live/0 2", "b finished live/0 2"]


def test_a_stopped_attempt_is_canceled(world: World, diary: Path) -> None:
    with pytest.raises(AttemptCanceledError):
        world.run(0, should_stop=lambda: True)
    assert lines(diary)[2:] == ["a canceled live/0 1", "b canceled live/0 1"]


def test_an_attempt_found_dead_by_the_next_one_is_failed_before_that_one_is_created(world: World, diary: Path) -> None:
    def kill(_: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_provider_microbatch.execution.execution.Execution.abandon", lambda *_, **__: None)
        with pytest.raises(Killed):
            world.run(0, InlineEngine(before_stage=kill))
    world.run(0, try_number=2)
    told = [line for line in lines(diary) if line.startswith("a")]
    assert told == ["a created live/0 1", "a failed live/0 1", "a created live/0 2", "a finished live/0 2"]
    assert "superseded by attempt 2" in diary.read_text()


def test_a_replay_is_an_attempt_like_any_other(world: World, diary: Path) -> None:
    world.run(0)
    world.run(0, clear_number=1)
    assert lines(diary)[4:] == [
        "a created live/0 2", "b created live/0 2", "a finished live/0 2", "b finished live/0 2"
    ]  # fmt: skip


def test_an_error_in_created_fails_the_attempt_before_anything_is_started(world: World, diary: Path) -> None:
    Path(f"{diary}.fails").write_text("a created")
    engine = InlineEngine()
    with pytest.raises(HookError, match=r"live/0 attempt 1: hook tests.support.hooks:Diary refused .*own trouble"):
        world.run(0, engine)
    assert engine.jobs == []
    assert world.table() == {}
    assert lines(diary) == ["a created live/0 1", "a failed live/0 1", "b failed live/0 1"]


@pytest.mark.parametrize("hook", ["a", "b"])
def test_an_error_in_finished_undoes_no_commit_and_keeps_the_attempt_for_the_janitor(
    world: World, diary: Path, hook: str
) -> None:
    Path(f"{diary}.fails").write_text(f"{hook} finished")
    summary = world.run(0)
    assert summary is not None
    assert summary.state == "committed"
    assert lines(diary)[2:] == ["a finished live/0 1", "b finished live/0 1"], "one hook's error is its own"
    assert world.checkpoint.leases.unfinished() == [(KEY, 1)]


def test_killed_after_a_hook_returned_it_is_told_again_and_the_others_once(world: World, diary: Path) -> None:
    def record(self: Deliveries, key: BatchKey, epoch: int, index: int, status: str) -> bool:
        if (index, status) == (1, "finished"):
            raise Killed
        return real(self, key, epoch, index, status)

    real = Deliveries.record
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Deliveries, "record", record)
        patch.setattr("airflow_provider_microbatch.execution.execution.Execution.abandon", lambda *_, **__: None)
        with pytest.raises(Killed):
            world.run(0)
    manifest = world.published()
    assert manifest is not None
    world.execution.commit(key=KEY, manifest=manifest, run=run_identity(0))
    assert lines(diary)[2:] == ["a finished live/0 1", "b finished live/0 1", "b finished live/0 1"]
    assert world.checkpoint.leases.unfinished() == []


def test_killed_after_the_commit_and_cleared_the_attempt_is_told_that_it_finished(world: World, diary: Path) -> None:
    def end(*_: object) -> bool:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_provider_microbatch.checkpoint.attempts.Attempts.end", end)
        patch.setattr("airflow_provider_microbatch.execution.execution.Execution.abandon", lambda *_, **__: None)
        with pytest.raises(Killed):
            world.run(0)
    assert world.checkpoint.commit_log.get(0) is not None
    world.run(0, clear_number=1)
    told = [line for line in lines(diary) if line.startswith("a")]
    assert told == ["a created live/0 1", "a finished live/0 1", "a created live/0 2", "a finished live/0 2"]
    end_on_record = world.checkpoint.attempts.ended(KEY, 1)
    assert end_on_record is not None
    assert end_on_record.state == "succeeded"


def test_the_hooks_called_are_those_of_the_attempt_although_the_pipeline_has_changed(world: World, diary: Path) -> None:
    run = run_identity(0)
    world.execution.plan(run)
    attempt = world.execution.open_attempt(key=KEY, run=run, code=CODE, engine=InlineEngine())
    world.options["hooks"] = ()
    world.execution.abandon(attempt, state="failed", error=OSError("gone"), engine=InlineEngine())
    assert lines(diary) == ["a failed live/0 1", "b failed live/0 1"]


def test_the_pipeline_with_its_hooks_is_the_same_after_a_round_trip(world: World) -> None:
    assert Pipeline.from_dict(world.pipeline.to_dict()) == world.pipeline


def test_what_is_no_hook_is_refused(world: World) -> None:
    world.options["hooks"] = (print,)
    with pytest.raises(DefinitionError, match="not a JobStatusHook"):
        _ = world.pipeline


@dataclass(frozen=True)
class OfADagFile(JobStatusHook):
    pass


@dataclass(frozen=True)
class NotJson(JobStatusHook):
    when: object


class NoDataclass(JobStatusHook):
    pass


@pytest.mark.parametrize("module", ["unusual_prefix_0123_orders", "__main__"])
def test_a_hook_that_another_process_cannot_import_is_refused(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OfADagFile, "__module__", module)
    with pytest.raises(DefinitionError, match=r"task 'x': hook .*OfADagFile.* cannot be imported by another process"):
        check_hook(OfADagFile(), where="task 'x'")


@pytest.mark.parametrize("hook", [NotJson(object()), NotJson((1, 2)), NoDataclass()])
def test_a_hook_that_cannot_be_written_down_is_refused(hook: JobStatusHook) -> None:
    with pytest.raises(DefinitionError, match=r"frozen dataclass|cannot be written down"):
        check_hook(hook, where="task 'x'")
