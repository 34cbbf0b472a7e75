"""Plan → run → publish → commit with real logs, files and table; the engine alone is small."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import (
    AttemptCanceledError,
    AttemptFencedError,
    ConcurrentPlanError,
    EngineError,
    ForeignCheckpointError,
    SinkError,
    SourceChangedError,
    SourceCountError,
    SourceError,
    TransformError,
)
from airflow_provider_microbatch.execution.engine import Handle
from tests.execution.world import CODE, World, run_identity
from tests.support.inline_engine import InlineEngine
from tests.support.whose import expected_batch


class Killed(BaseException):
    """Stands for the end of the process: nothing of ours catches it but the cleanup, which the test may forbid."""


def kill(*_: object, **__: object) -> None:
    raise Killed


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def kill_run(world: World, number: int, engine: InlineEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run until ``engine`` kills the process: no cleanup of ours runs, as with SIGKILL."""
    from airflow_provider_microbatch.execution.execution import Execution

    with monkeypatch.context() as patch:
        patch.setattr(Execution, "abandon", lambda *args, **kwargs: None)
        with pytest.raises(Killed):
            world.run(number, engine)


def test_a_table_that_cannot_be_made_is_told_before_anything_is_planned(world: World) -> None:
    world.land(1)
    (world.root / "lake").write_text("a file")
    engine = InlineEngine()
    with pytest.raises(SinkError, match=r"the table .*lake cannot be written: .*lake is not a folder"):
        world.run(1, engine)
    assert world.checkpoint.offset_log.latest() is None
    assert not engine.jobs


def test_every_landed_row_is_in_exactly_one_batch(world: World) -> None:
    for number in range(5):
        world.land(number * 10, number * 10 + 1)
        summary = world.run(number)
        assert summary is not None
        assert (summary.key.id, summary.state, summary.rows_out) == (number, "committed", 2)
    assert world.table() == {number: [number * 10, number * 10 + 1] for number in range(5)}
    assert world.stages() == []


def test_nothing_new_plans_nothing(world: World) -> None:
    assert world.run(0) is None
    world.land(1)
    world.run(1)
    before = world.files()
    assert world.run(2) is None
    assert world.files() == before


def test_a_retry_runs_the_planned_range_although_new_data_has_come(world: World) -> None:
    world.land(1)
    with pytest.raises(TransformError):
        world.run(0, InlineEngine(transform=lambda sources: 1 / 0))  # type: ignore[arg-type, return-value]
    assert world.table() == {}
    world.land(2)
    assert world.run(0, try_number=2).key.id == 0  # type: ignore[union-attr]
    assert world.table() == {0: [1]}
    world.run(1)
    assert world.table() == {0: [1], 1: [2]}


def test_a_transform_error_shows_its_traceback_and_leaves_no_stage(world: World) -> None:
    world.land(1)
    with pytest.raises(TransformError, match=r"stays planned[\s\S]*Traceback: ZeroDivisionError"):
        world.run(0, InlineEngine(transform=lambda sources: 1 / 0))  # type: ignore[arg-type, return-value]
    assert world.stages() == []
    key = world.execution.load(world.execution.plan(run_identity(0)).key).key  # type: ignore[union-attr]
    end = world.checkpoint.attempts.ended(key, 1)
    assert end is not None
    assert end.state == "failed"


def test_killed_before_the_stage_the_batch_recovers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.land(1)
    kill_run(world, 0, InlineEngine(before_stage=kill), monkeypatch)
    world.land(2)
    engine = InlineEngine()
    summary = world.run(0, engine, try_number=2)
    assert summary is not None
    assert (summary.key.id, summary.epoch) == (0, 2)
    assert world.table() == {0: [1]}
    # The handle of the dead attempt was on record before its launch, so its Spark could be stopped.
    dead = world.checkpoint.attempts.get(summary.key, 1)
    assert dead is not None
    assert engine.cancelled == [dead.handle["tag"]]


def test_killed_between_stage_and_publish_leaves_no_stage_after_the_retry(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.land(1)
    kill_run(world, 0, InlineEngine(after_stage=kill), monkeypatch)
    assert world.stages() == ["live/0 attempt 1"]
    world.run(0, try_number=2)
    assert world.stages() == []
    assert world.table() == {0: [1]}


def test_killed_between_publish_and_commit_only_the_commit_is_made_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_microbatch.execution.execution import Execution

    world.land(1)
    with monkeypatch.context() as patch:
        patch.setattr(Execution, "commit", kill)
        with pytest.raises(Killed):
            world.run(0)
    world.expire_leases()
    engine = InlineEngine()
    summary = world.run(1, engine)
    assert engine.jobs == [], "the batch is in the sink: Spark must not run it again"
    assert summary is not None
    assert (summary.key.id, summary.epoch, summary.state) == (0, 1, "committed")


def test_killed_after_the_commit_the_retry_does_not_plan_a_second_batch(world: World) -> None:
    world.land(1)
    world.run(0)
    world.land(2)
    engine = InlineEngine()
    assert world.run(0, engine, try_number=2).key.id == 0  # type: ignore[union-attr]
    assert engine.jobs == []
    assert world.table() == {0: [1]}


def test_a_late_attempt_is_fenced_and_names_the_winner(world: World) -> None:
    world.land(1)
    key = world.execution.plan(run_identity(0)).key  # type: ignore[union-attr]
    engine = InlineEngine()
    late = world.execution.open_attempt(key=key, run=run_identity(0), code=CODE, engine=engine)
    job = world.execution.job(late, None)
    winner = world.execution.open_attempt(key=key, run=run_identity(0, try_number=2), code=CODE, engine=engine)
    world.execution.run_attempt(attempt=late, job=job, engine=engine, code=CODE)
    with pytest.raises(AttemptFencedError, match=f"fenced by attempt {winner.epoch}"):
        world.execution.publish(late)
    assert world.table() == {}


def test_two_attempts_that_both_pass_the_fence_publish_once(world: World) -> None:
    """The fence is only asked, the rename decides: the second finds the batch in and adopts it."""
    world.land(1)
    key = world.execution.plan(run_identity(0)).key  # type: ignore[union-attr]
    engine = InlineEngine()
    attempts = []
    for number in (1, 2):
        run = run_identity(0, try_number=number)
        attempts.append(world.execution.open_attempt(key=key, run=run, code=CODE, engine=engine))
    for attempt in attempts:
        world.execution.run_attempt(
            attempt=attempt, job=world.execution.job(attempt, None), engine=engine, code=CODE
        )  # fmt: skip
    batch = expected_batch(world.checkpoint, key)
    assert world.pipeline.sink.publish(batch, 1).epoch == 1
    assert world.execution.publish(attempts[1]).epoch == 1
    assert world.table() == {0: [1]}
    assert world.stages() == []


def test_a_stopped_task_publishes_nothing(world: World) -> None:
    world.land(1)
    stopped = False

    def stop(_: object) -> None:
        nonlocal stopped
        stopped = True

    with pytest.raises(AttemptCanceledError):
        world.run(0, InlineEngine(after_stage=stop), should_stop=lambda: stopped)
    assert world.table() == {}
    assert world.stages() == []
    assert world.run(0, try_number=2).key.id == 0  # type: ignore[union-attr]
    assert world.table() == {0: [1]}


def test_a_cleared_run_replays_its_batch_and_no_other(world: World) -> None:
    for number in range(3):
        world.land(number)
        world.run(number)
    doubled = InlineEngine(transform=lambda sources: [{"id": row["id"] + 100} for row in sources["orders"]])
    summary = world.run(1, doubled, clear_number=1)
    assert summary is not None
    assert summary.key.id == 1
    assert world.table() == {0: [0], 1: [101], 2: [2]}
    assert [job.batch_timestamp_ms for job in doubled.jobs] == [summary.planned_ms]


def test_a_cleared_run_replays_its_own_batch_although_another_is_planned(world: World) -> None:
    world.land(0)
    world.run(0)
    world.land(1)
    world.execution.plan(run_identity(1))
    doubled = InlineEngine(transform=lambda sources: [{"id": row["id"] + 100} for row in sources["orders"]])
    assert world.run(0, doubled, clear_number=1).key.id == 0  # type: ignore[union-attr]
    assert world.table() == {0: [100]}
    assert world.run(1).key.id == 1  # type: ignore[union-attr]


def test_a_run_that_finished_the_batch_of_another_is_done_and_can_be_cleared(world: World) -> None:
    world.land(0)
    world.execution.plan(run_identity(0))
    world.run(1)
    world.land(1)
    engine = InlineEngine()
    assert world.run(1, engine, try_number=2).key.id == 0  # type: ignore[union-attr]
    assert engine.jobs == []
    assert world.run(1, engine, clear_number=1).key.id == 0  # type: ignore[union-attr]
    assert [job.batch_id for job in engine.jobs] == [0]
    assert world.table() == {0: [0]}


def test_a_replay_that_fails_leaves_the_old_output(world: World) -> None:
    world.land(1)
    world.run(0)
    with pytest.raises(TransformError):
        world.run(0, InlineEngine(transform=lambda sources: 1 / 0), clear_number=1)  # type: ignore[arg-type, return-value]
    assert world.table() == {0: [1]}


def test_source_commit_is_said_again_at_the_next_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_microbatch.execution.opened_sources import OpenedSources
    from airflow_provider_microbatch.sources.file import FileSource

    world = World(tmp_path)
    landing = str(world.landing())
    world.sources = {"orders": FileSource(landing, format="json", schema="id long", clean_source="delete")}
    landed = world.land(1)
    with monkeypatch.context() as patch:
        patch.setattr(OpenedSources, "commit", kill)
        with pytest.raises(Killed):
            world.run(0)
    assert landed.exists()
    assert world.run(1) is None
    assert not landed.exists()


@pytest.mark.parametrize("error", [SourceError("no route to host"), TimeoutError("timed out"), KeyError("partition")])
def test_whatever_a_source_raises_from_commit_is_logged_and_said_again_and_fails_no_batch(
    world: World, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from airflow_provider_microbatch.sources.file.open import OpenFileSource

    said: list[str] = []

    def commit(self: object, end: str) -> None:
        said.append(end)
        if len(said) < 3:
            raise error

    monkeypatch.setattr(OpenFileSource, "commit", commit)
    world.land(1)
    summary = world.run(0)
    assert summary is not None
    assert summary.state == "committed"
    assert "orders" in caplog.text
    assert str(error) in caplog.text
    assert world.run(1) is None, "nor does it fail the next plan"
    assert world.run(2) is None
    assert said == ['{"logOffset":0}'] * 3
    assert world.table() == {0: [1]}


def test_a_run_that_loses_the_plan_names_the_winner(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_microbatch.checkpoint.log import MetadataLog

    world.land(1)
    real = MetadataLog.add

    def add(self: object, batch_id: int, entry: object) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(MetadataLog, "add", real)
            world.execution.plan(run_identity(7))
        return real(self, batch_id, entry)  # type: ignore[arg-type]

    monkeypatch.setattr(MetadataLog, "add", add)
    with pytest.raises(ConcurrentPlanError, match="run-7"):
        world.execution.plan(run_identity(8))


def test_another_pipeline_is_refused_and_writes_nothing(world: World) -> None:
    world.land(1)
    world.run(0)
    before = world.files()
    world.options["name"] = "returns"
    world.land(2)
    with pytest.raises(ForeignCheckpointError, match="'orders', not to 'returns'"):
        world.run(1)
    with pytest.raises(ForeignCheckpointError):
        world.execution.should_fire()
    assert world.files() == before


def test_a_missing_path_is_refused_and_writes_nothing(world: World) -> None:
    world.landing().rmdir()
    with pytest.raises(SourceError, match="landing/orders"):
        world.run(0)
    assert world.files() == {}


def test_a_planned_file_that_vanished_stops_the_batch_and_names_it(world: World) -> None:
    path = world.land(1)
    world.execution.plan(run_identity(0))
    path.unlink()
    with pytest.raises(SourceChangedError, match=path.name):
        world.run(0)
    assert world.table() == {}
    world.land(1)


def test_sources_can_be_added_removed_and_come_back_where_they_stopped(tmp_path: Path) -> None:
    world = World(tmp_path, sources=("a", "b"))
    both = dict(world.sources)
    world.land(1, source="a")
    world.land(11, source="b")
    world.run(0)
    world.sources = {"a": both["a"]}
    world.land(2, source="a")
    world.land(12, source="b")
    world.run(1)
    world.land(3, source="a")
    world.run(2)
    world.sources = {"b": both["b"], "a": both["a"]}
    world.run(3)
    assert world.table() == {0: [1, 11], 1: [2], 2: [3], 3: [12]}


def test_a_v1_checkpoint_refuses_another_number_of_sources(tmp_path: Path) -> None:
    world = World(tmp_path, sources=("a", "b"), checkpoint_format="v1")
    world.land(1, source="a")
    world.run(0)
    before = world.files()
    world.sources.pop("b")
    with pytest.raises(SourceCountError, match=r"\[2\] sources in the checkpoint offsets and now there are \[1\]"):
        world.run(1)
    assert world.files() == before


def test_a_reordered_v1_pipeline_reads_each_source_from_its_own_position(tmp_path: Path) -> None:
    world = World(tmp_path, sources=("a", "b"), checkpoint_format="v1")
    world.land(1, source="a")
    world.run(0)
    world.sources = dict(reversed(world.sources.items()))
    world.land(11, source="b")
    world.land(2, source="a")
    world.run(1)
    assert world.table() == {0: [1], 1: [2, 11]}


def test_a_batch_without_data_runs_when_the_last_one_asked_for_it(world: World) -> None:
    def ask(job: object) -> None:
        manifest = next(world.lake.rglob("_manifest/part-0.txt"))
        first, *rest = manifest.read_text().splitlines()
        line = json.loads(first)
        line["result"]["requiresAnotherBatch"] = True
        manifest.write_text("\n".join([json.dumps(line), *rest]))

    world.land(1)
    world.run(0, InlineEngine(after_stage=ask))
    assert world.execution.should_fire().fire
    world.options["no_data_batches"] = False
    assert not world.execution.should_fire().fire
    assert world.run(1) is None
    world.options["no_data_batches"] = True
    world.run(2)
    assert world.table() == {0: [1], 1: []}
    assert not world.execution.should_fire().fire


def test_the_log_lines_are_sparks(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world.land(1)
    world.run(0)
    world.land(2)
    world.execution.plan(run_identity(1))
    world.run(1)
    lines = {(record.levelname, record.getMessage()) for record in caplog.records}
    assert ("INFO", "Starting new streaming query.") in lines
    assert ("INFO", "Completed batch [0]") in lines
    expected = (
        'Resuming at batch 1 with committed offsets {orders: {"logOffset":0}} and available offsets '
        '{orders: {"logOffset":1}}'
    )
    assert ("INFO", expected) in lines
    assert any(text.startswith("Committed offsets for batch 0. Metadata OffsetSeqMetadata(0,") for _, text in lines)
    decision = (
        "noDataBatchesEnabled = true, lastExecutionRequiresAnotherBatch = false, isNewDataAvailable = true, "
        "shouldConstructNextBatch = true"
    )
    assert ("DEBUG", decision) in lines


def test_the_sensor_fires_for_new_data_and_for_work_to_finish_and_writes_nothing(world: World) -> None:
    assert not world.execution.should_fire().fire
    world.land(1)
    before = world.files()
    assert world.execution.should_fire().reason == "new data in orders"
    assert world.files() == before
    world.execution.plan(run_identity(0))
    assert "planned and not committed" in world.execution.should_fire(run_identity(9)).reason
    world.run(0)
    assert world.execution.should_fire(run_identity(0)).reason == "this run planned batch 0"
    assert not world.execution.should_fire(run_identity(1)).fire


def test_retention_keeps_the_newest_entries(tmp_path: Path) -> None:
    world = World(tmp_path, min_batches_to_retain=3)
    for number in range(6):
        world.land(number)
        world.run(number)
    assert world.checkpoint.offset_log.ids() == [3, 4, 5]
    assert world.checkpoint.commit_log.ids() == [3, 4, 5]
    world.land(6)
    assert world.run(6).key.id == 6  # type: ignore[union-attr]


def test_the_job_says_how_much_it_reads_in_the_words_of_the_source(tmp_path: Path) -> None:
    """For the task log: nothing but the source knows what it counts."""
    world = World(tmp_path)
    engine = InlineEngine()
    landed = world.land(1, 2)
    world.run(0, engine)
    (job,) = engine.jobs
    assert job.sources["orders"].amount == f"1 files, {landed.stat().st_size} bytes"


class FailingAtItsEnd(InlineEngine):
    """The job does its work, and then the process fails: a JVM that is aborted while it ends."""

    def result(self, handle: Handle) -> None:
        raise EngineError("its Spark was killed by signal 6 (SIGABRT)")


def test_a_process_that_fails_after_its_stage_was_whole_has_cost_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.land(1)
    summary = world.run(0, FailingAtItsEnd())

    assert summary is not None
    assert summary.state == "committed"
    assert world.table() == {0: [1]}
    assert "SIGABRT" in caplog.text


def test_a_process_that_fails_before_its_stage_was_whole_fails_the_attempt(world: World) -> None:
    world.land(1)
    engine = FailingAtItsEnd()
    engine.start = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="SIGABRT"):
        world.run(0, engine)

    assert world.table() == {}
    assert world.stages() == []
