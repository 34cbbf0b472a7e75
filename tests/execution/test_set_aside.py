"""A batch that keeps failing is set aside where the pipeline says so: the next batches go on, and a clear runs it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.attempts import Attempts
from airflow_provider_microbatch.checkpoint.codec import decode_commit, encode_commit
from airflow_provider_microbatch.checkpoint.entries import Attempt, AttemptEnd
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.log import MetadataLog
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import (
    AttemptCanceledError,
    AttemptFencedError,
    BatchSetAsideError,
    DefinitionError,
    EngineError,
    ReadError,
    SourceError,
    TransformError,
)
from airflow_provider_microbatch.execution.engine import EngineState, Handle
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.liveness import no_engine
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.execution.set_aside import failures
from airflow_provider_microbatch.execution.summary import BatchSummary, summarize
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.open import OpenFileSource
from tests.execution.world import CODE, World, run_identity
from tests.support.inline_engine import InlineEngine, local

KEY = BatchKey("live", 0)


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Row 1 is landed. Two failures are one too many, and two deaths."""
    world = World(tmp_path, on_failure="set_aside", set_aside_after=2, set_aside_after_dead=2)
    world.land(1)
    return world


def broken() -> InlineEngine:
    return InlineEngine(transform=lambda sources: 1 / 0)  # type: ignore[arg-type, return-value]


def fail(world: World, number: int = 0, **kwargs: Any) -> None:
    with pytest.raises(TransformError):
        world.run(number, broken(), **kwargs)


def put_aside(world: World) -> None:
    """Batch 0 fails twice in run 0."""
    fail(world)
    with pytest.raises(BatchSetAsideError):
        world.run(0, broken(), try_number=2)


def cleaning(world: World, how: str) -> None:
    """The source archives or deletes what is committed."""
    archive = str(world.root / "archive") if how == "archive" else None
    world.sources = {
        "orders": FileSource(
            str(world.landing()), format="json", schema="id long", clean_source=how, archive_dir=archive
        )
    }


def summary_of(world: World, key: BatchKey = KEY) -> BatchSummary:
    return summarize(world.checkpoint, key)


def test_after_so_many_failures_the_alarm_says_what_was_set_aside_and_the_next_run_goes_on(world: World) -> None:
    fail(world)
    with pytest.raises(BatchSetAsideError) as alarm:
        world.run(0, broken(), try_number=2)
    told = str(alarm.value)
    assert "live/0 was set aside after 2 failed attempts" in told
    assert '{orders: -} to {orders: {"logOffset":0}}' in told
    assert "division by zero" in told
    assert isinstance(alarm.value.__cause__, TransformError)
    world.land(2)
    summary = world.run(1)
    assert summary is not None
    assert (summary.key.id, summary.state) == (1, "committed")
    assert world.table() == {1: [2]}
    aside = summary_of(world)
    assert (aside.state, aside.epoch, aside.rows_out, aside.label) == ("set_aside", 2, None, "batch 0 · set aside")
    assert "division by zero" in str(aside.error)
    assert world.stages() == []
    assert verify_all(world.checkpoint) == []


def test_failures_count_over_the_runs(world: World) -> None:
    fail(world)
    with pytest.raises(BatchSetAsideError):
        world.run(1, broken())
    world.run(1, clear_number=1)
    assert world.table() == {0: [1]}, "the run that set it aside can be cleared"


def test_the_default_is_to_fail_for_as_long_as_it_fails(world: World) -> None:
    world.options["on_failure"] = "fail"
    for number in range(5):
        fail(world, number)
    world.run(5)
    assert world.table() == {0: [1]}


def test_a_retry_after_the_alarm_raises_it_again(world: World) -> None:
    """It died between the commit entry and the end of its task, say. A batch that is set aside is never green."""
    put_aside(world)
    engine = InlineEngine()
    with pytest.raises(BatchSetAsideError, match="division by zero"):
        world.run(0, engine, try_number=3)
    assert engine.jobs == []


def test_what_was_stopped_or_overtaken_is_no_failure(world: World) -> None:
    with pytest.raises(AttemptCanceledError):
        world.run(0, should_stop=lambda: True)

    def overtake(job: object) -> None:
        # It has its epoch and no more yet: the one that it overtakes puts an end to itself.
        attempts = world.checkpoint.attempts
        before = attempts.latest(KEY)
        assert before is not None
        assert attempts.take_exactly(dataclasses.replace(before, epoch=before.epoch + 1))
        attempts.end(KEY, before.epoch + 1, AttemptEnd(state="canceled", ended_ms=1))

    with pytest.raises(AttemptFencedError):
        world.run(1, InlineEngine(after_stage=overtake))
    end = world.checkpoint.attempts.ended(KEY, 2)
    assert end is not None
    assert end.state == "superseded"
    fail(world, 2)
    assert world.run(3) is not None
    assert world.table() == {0: [1]}


def die(world: World, monkeypatch: pytest.MonkeyPatch, number: int = 0) -> None:
    """A run whose process is killed in the middle of its job; an hour later."""

    def kill(job: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Execution, "abandon", lambda *args, **kwargs: None)
        with pytest.raises(Killed):
            world.run(number, InlineEngine(before_stage=kill))
    world.expire_leases()


def test_attempts_that_were_found_dead_have_a_count_of_their_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines die for other reasons than a batch, so a power failure and a failed attempt are not two failures. But
    what kills the worker each time never gets to say that it failed."""
    die(world, monkeypatch)
    fail(world, 1)
    die(world, monkeypatch, 2)
    with pytest.raises(BatchSetAsideError, match="after 2 failed attempts"):
        world.run(3)
    end = world.checkpoint.attempts.ended(KEY, 1)
    assert end is not None
    assert end.state == "failed"
    assert "found dead" in str(end.error)
    assert "attempt 2 of run 'run-1'" in str(end.error)
    assert end.cause == "dead"


@pytest.mark.parametrize("origin", ["write", "runtime", None])
def test_an_outage_sets_no_batch_aside(world: World, origin: str | None) -> None:
    """The cluster is down, its disk is full, or a hook refuses: nothing of it is the batch's fault."""

    def outage(job: Job) -> None:
        stage = local(job.stage.arguments["path"])
        if origin is not None:
            (stage / "_error").mkdir(parents=True)
            told = {"origin": origin, "error": "no space left on device", "traceback": ""}
            (stage / "_error" / "part-0.txt").write_text(json.dumps(told) + "\n")
        raise EngineError("spark-submit ended with 1")

    for number in range(5):
        with pytest.raises(EngineError):
            world.run(number, InlineEngine(before_stage=outage))
    world.run(5)
    assert world.table() == {0: [1]}


@pytest.mark.parametrize(("origin", "kind"), [("read", ReadError), ("data", ReadError), ("result", TransformError)])
def test_data_that_cannot_be_read_or_computed_with_or_written_is_the_batchs_fault(
    world: World, origin: str, kind: type[EngineError]
) -> None:
    def poisoned(job: Job) -> None:
        stage = local(job.stage.arguments["path"])
        (stage / "_error").mkdir(parents=True)
        told = {"origin": origin, "error": "[DIVIDE_BY_ZERO] Division by zero", "traceback": ""}
        (stage / "_error" / "part-0.txt").write_text(json.dumps(told) + "\n")
        raise EngineError("spark-submit ended with 1")

    with pytest.raises(kind):
        world.run(0, InlineEngine(before_stage=poisoned))
    with pytest.raises(BatchSetAsideError, match="Division by zero"):
        world.run(0, InlineEngine(before_stage=poisoned), try_number=2)


def test_an_engine_that_cannot_be_asked_says_nothing_of_the_attempt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(InlineEngine):
        def poll(self, handle: Handle) -> EngineState:
            raise EngineError("the resource manager does not answer")

    die(world, monkeypatch)
    assert failures(world.checkpoint, KEY, lambda name: Away()).dead == ()
    assert len(failures(world.checkpoint, KEY, lambda name: InlineEngine()).dead) == 1


def test_an_end_of_before_causes_were_recorded_counts_where_its_text_says_who_died(world: World) -> None:
    world.execution.plan(run_identity(0))
    for epoch, error in enumerate(["found dead by the janitor: its lease has run out", "the cluster is down"], 1):
        attempt = world.execution.open_attempt(key=KEY, run=run_identity(0), code=CODE, engine=InlineEngine())
        world.checkpoint.attempts.end(KEY, epoch, AttemptEnd(state="failed", error=error, ended_ms=1))
        path = world.root / f"checkpoint/attempts/live/0/{attempt.epoch}.end"
        assert ',"cause":null' in path.read_text()
        path.write_text(path.read_text().replace(',"cause":null', ""))
    found = failures(world.checkpoint, KEY, no_engine)
    assert (len(found.job), len(found.dead)) == (0, 1)


def test_a_batch_that_kills_its_worker_each_time_is_set_aside_before_it_kills_one_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(world, monkeypatch)
    die(world, monkeypatch, 1)
    engine = InlineEngine()
    with pytest.raises(BatchSetAsideError, match="found dead"):
        world.run(2, engine)
    assert engine.jobs == []


def test_a_clear_runs_it_and_it_is_committed_like_any_other(world: World) -> None:
    put_aside(world)
    world.land(2, 3)
    world.run(1)
    summary = world.run(0, clear_number=1)
    assert summary is not None
    assert (summary.key, summary.state, summary.epoch, summary.rows_out) == (KEY, "committed", 4, 1)
    assert summary.error is None
    assert world.table() == {0: [1], 1: [2, 3]}
    assert world.stages() == []
    again = InlineEngine()
    world.run(0, again, clear_number=1, try_number=2)
    assert again.jobs == []
    world.run(0, InlineEngine(transform=lambda sources: [{"id": 7}]), clear_number=2)
    assert world.table() == {0: [7], 1: [2, 3]}


def test_a_replay_that_fails_leaves_it_set_aside(world: World) -> None:
    put_aside(world)
    for _ in range(3):
        fail(world, clear_number=1)
    assert summary_of(world).state == "set_aside"
    assert world.table() == {}
    world.run(0, clear_number=1)
    assert summary_of(world).state == "committed"


def test_a_replay_that_died_between_publish_and_its_answer_is_not_run_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_aside(world)
    with monkeypatch.context() as patch:
        patch.setattr(Execution, "commit", lambda *args, **kwargs: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            world.run(0, clear_number=1)
    engine = InlineEngine()
    world.run(0, engine, clear_number=1, try_number=2)
    assert engine.jobs == []
    assert summary_of(world).state == "committed"
    assert world.table() == {0: [1]}


@pytest.mark.parametrize("how", ["archive", "delete"])
def test_its_files_stay_until_it_is_replayed(world: World, how: str) -> None:
    cleaning(world, how)
    first = world.landing() / "000001.json"
    put_aside(world)
    second = world.land(2)
    world.run(1)
    assert (first.exists(), second.exists()) == (True, False)
    third = world.land(3)
    world.run(2)
    assert (first.exists(), third.exists()) == (True, False)
    world.run(0, clear_number=1)
    assert world.table() == {0: [1], 1: [2], 2: [3]}
    assert not first.exists()


def test_its_files_stay_when_it_is_the_newest_batch_and_the_commit_is_said_again(world: World) -> None:
    cleaning(world, "delete")
    put_aside(world)
    assert world.run(1) is None
    assert (world.landing() / "000001.json").exists()


def test_files_of_the_batch_before_are_cleaned_although_the_newest_is_set_aside(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """source.commit of the batch before was missed: it is said again, and passes over what is kept."""
    cleaning(world, "delete")
    with monkeypatch.context() as patch:
        patch.setattr(OpenedSources, "commit", lambda *args: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            world.run(0)
    world.land(2)
    fail(world, 1)
    with pytest.raises(BatchSetAsideError):
        world.run(1, broken(), try_number=2)
    world.run(2)
    assert [path.name for path in world.landing().glob("[!.]*")] == ["000002.json"]


def test_a_replay_whose_source_was_not_told_is_cleaned_by_the_next_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaning(world, "delete")
    put_aside(world)
    with monkeypatch.context() as patch:
        patch.setattr(OpenedSources, "commit", lambda *args: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            world.run(0, clear_number=1)
    assert world.run(1) is None
    assert list(world.landing().glob("[!.]*")) == []


def test_once_replayed_and_deleted_it_is_refused_like_any_other(world: World) -> None:
    cleaning(world, "delete")
    put_aside(world)
    world.run(0, clear_number=1)
    with pytest.raises(SourceError, match=r"cannot be replayed[\s\S]*deleted by clean_source"):
        world.run(0, clear_number=2)
    assert world.checkpoint.replays.pending(KEY) == []
    assert world.table() == {0: [1]}


def test_the_range_is_kept_before_the_commit_entry_says_that_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    real = MetadataLog.add

    def add(self: MetadataLog[Any], batch_id: int, entry: Any) -> bool:
        said.append("commit entry")
        return real(self, batch_id, entry)

    fail(world)
    monkeypatch.setattr(MetadataLog, "add", add)
    monkeypatch.setattr(OpenFileSource, "keep", lambda self, start, end: said.append("keep"))
    with pytest.raises(BatchSetAsideError):
        world.run(0, broken(), try_number=2)
    assert said == ["keep", "commit entry"]


def test_the_watermark_is_carried_forward(world: World) -> None:
    put_aside(world)
    commit = world.checkpoint.commit_log.get(0)
    assert commit is not None
    assert commit.next_watermark_ms == world.execution.load(KEY).entry.watermark_ms
    assert decode_commit(encode_commit(commit), where="here") == commit
    first, second = encode_commit(commit).decode().split("\n")
    assert first == "v1"
    assert second.startswith('{"nextBatchWatermarkMs":0,"microbatch":{'), "as Spark reads it"


def test_an_attempt_that_wakes_up_after_the_alarm_publishes_nothing(world: World) -> None:
    world.options["set_aside_after_dead"] = 1
    world.execution.plan(run_identity(0))
    late = world.execution.open_attempt(key=KEY, run=run_identity(0), code=CODE, engine=InlineEngine())
    job = world.execution.job(late, None)
    world.expire_leases()
    with pytest.raises(BatchSetAsideError):
        world.run(1)
    world.execution.run_attempt(attempt=late, job=job, engine=InlineEngine(), code=CODE)
    with pytest.raises(AttemptFencedError):
        world.execution.publish(late)
    newest = world.execution.open_attempt(key=KEY, run=run_identity(0), code=CODE, engine=InlineEngine())
    world.execution.run_attempt(attempt=newest, job=world.execution.job(newest, None), engine=InlineEngine(), code=CODE)
    with pytest.raises(AttemptFencedError, match="was set aside"):
        world.execution.publish(newest)
    assert world.table() == {}


def test_a_run_that_begins_at_that_moment_keeps_the_batch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who takes the epoch first decides: a batch that somebody is at is not set aside."""
    fail(world)
    real = Attempts.take_exactly

    def take_exactly(self: Attempts, attempt: Attempt) -> bool:
        if attempt.handle["engine"] == "set aside":
            monkeypatch.setattr(Attempts, "take_exactly", real)
            world.execution.open_attempt(key=KEY, run=run_identity(1), code=CODE, engine=InlineEngine())
        return real(self, attempt)

    monkeypatch.setattr(Attempts, "take_exactly", take_exactly)
    fail(world, try_number=2)
    assert world.checkpoint.commit_log.get(0) is None


def test_an_attempt_that_publishes_at_that_moment_is_committed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.options["set_aside_after_dead"] = 1
    fail(world)
    late = world.execution.open_attempt(key=KEY, run=run_identity(0), code=CODE, engine=InlineEngine())
    world.execution.run_attempt(attempt=late, job=world.execution.job(late, None), engine=InlineEngine(), code=CODE)
    world.expire_leases()
    real = Attempts.take_exactly
    taken: list[object] = []

    def take_exactly(self: Attempts, attempt: Attempt) -> bool:
        monkeypatch.setattr(Attempts, "take_exactly", real)
        taken.append(attempt.handle["engine"])
        world.execution.publish(late)
        return real(self, attempt)

    monkeypatch.setattr(Attempts, "take_exactly", take_exactly)
    summary = world.run(1)
    assert summary is not None
    assert taken == ["set aside"]
    assert (summary.key, summary.state, summary.epoch) == (KEY, "committed", late.epoch)
    assert world.table() == {0: [1]}


def test_killed_before_the_commit_entry_the_next_run_sets_it_aside(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(world)
    with monkeypatch.context() as patch:
        patch.setattr(MetadataLog, "add", lambda *args: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            world.run(0, broken(), try_number=2)
    engine = InlineEngine()
    with pytest.raises(BatchSetAsideError, match="after 2 failed attempts"):
        world.run(1, engine)
    assert engine.jobs == []


def test_the_janitors_finds_count(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    die(world, monkeypatch)
    world.janitor()
    die(world, monkeypatch, 1)
    with pytest.raises(BatchSetAsideError, match="after 2 failed attempts"):
        world.run(2)


def test_retention_keeps_it_and_says_so(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.options["min_batches_to_retain"] = 2
    put_aside(world)
    for number in range(1, 5):
        world.land(number + 1)
        world.run(number)
    assert world.checkpoint.offset_log.ids() == [0, 1, 2, 3, 4]
    assert "Retention keeps live/0 and all after it: it is set aside" in caplog.text
    world.run(0, clear_number=1)
    world.land(6)
    world.run(5)
    assert world.checkpoint.offset_log.ids() == [4, 5]
    assert world.table() == {number: [number + 1] for number in range(6)}


@pytest.mark.parametrize(
    "wrong",
    [
        {"on_failure": "skip"},
        {"set_aside_after": 0},
        {"set_aside_after": True},
        {"set_aside_after_dead": -1},
        {"set_aside_after_dead": 1.5},
    ],
)
def test_a_wrong_policy_is_refused_where_it_is_written(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=next(iter(wrong))):
        assert World(tmp_path, **wrong).pipeline
