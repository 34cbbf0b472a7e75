"""Split-wise batches: what a failed attempt has finished is not done again, and is never doubled or lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import AttemptFencedError, DefinitionError, EngineError, TransformError
from airflow_provider_microbatch.execution.engine import Code
from airflow_provider_microbatch.execution.subtasks import assemble
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime.job import Job, Subtask
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.file import FileSource
from tests.execution.world import CODE, Killed, World, run_identity
from tests.support.inline_engine import InlineEngine
from tests.support.table_systems import FilesIntoDatabase

SPLITS = 10


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, split_wise=True)
    for number in range(SPLITS):
        world.land(number)
    return world


def killed_after(finished: int, error: type[BaseException] = Killed) -> Callable[[Subtask], None]:
    """The process goes when so many subtasks are finished."""
    begun: list[Subtask] = []

    def before(subtask: Subtask) -> None:
        begun.append(subtask)
        if len(begun) > finished:
            raise error

    return before


def fail(world: World, finished: int, *, number: int = 0, **kwargs: Any) -> InlineEngine:
    """An attempt that fails when so many subtasks are finished, and cleans up after itself."""
    engine = InlineEngine(before_subtask=killed_after(finished))
    with pytest.raises(Killed):
        world.run(number, engine, **kwargs)
    return engine


def die(world: World, finished: int, *, number: int = 0, code: Code = CODE) -> tuple[Attempt, Job]:
    """An attempt whose process and whose Spark are killed at once when so many subtasks are finished."""
    run, engine = run_identity(number), InlineEngine(before_subtask=killed_after(finished))
    planned = world.execution.plan(run)
    assert planned is not None
    attempt = world.execution.open_attempt(key=planned.key, run=run, code=code, engine=engine)
    job = world.execution.job(attempt, None)
    with pytest.raises(Killed):
        world.execution.run_attempt(attempt=attempt, job=job, engine=engine, code=code)
    return attempt, job


def goes_on(world: World, *, left: int, **kwargs: Any) -> None:
    """The next attempt reads so many rows, and the batch has all of them, each once."""
    world.expire_leases()
    engine = InlineEngine()
    world.run(kwargs.pop("number", 0), engine, try_number=kwargs.pop("try_number", 2), **kwargs)
    assert engine.rows_read == left
    assert world.table()[0] == list(range(SPLITS))
    nothing_is_left(world)


def nothing_is_left(world: World) -> None:
    world.janitor()
    assert [path for path in (world.lake / "_staging").rglob("*") if path.is_file()] == []
    assert not list(world.lake.glob("lane=*/batch_id=*/_subtasks"))
    assert world.checkpoint.subtasks.batches() == []
    assert verify_all(world.checkpoint) == []


def test_the_next_attempt_reads_what_is_left(world: World) -> None:
    fail(world, 9)
    goes_on(world, left=SPLITS - 9)
    commit = world.checkpoint.commit_log.get(0)
    assert commit is not None
    assert commit.progress["numInputRows"] == {"orders": SPLITS}, "of the batch, whoever has read them"
    assert commit.progress["subtasks"] == {"run": 1, "taken": 9, "rowsTaken": 9}


def test_so_does_one_after_a_death_that_nobody_cleaned_up(world: World) -> None:
    die(world, 4)
    goes_on(world, left=SPLITS - 4)


def test_what_passed_once_passes_again(world: World) -> None:
    die(world, 3)
    world.expire_leases()
    die(world, 3)
    world.expire_leases()
    fail(world, 2, number=1)
    goes_on(world, left=SPLITS - 8, number=2)


def test_the_janitor_keeps_it_for_the_next_run(world: World) -> None:
    die(world, 6)
    world.expire_leases()
    report = world.janitor()
    assert report.of("stage dropped") == ["live/0 attempt 1"]
    assert report.of("finished splits removed") == []
    goes_on(world, left=SPLITS - 6)


def test_an_attempt_that_died_before_its_publish_leaves_nothing_to_read(world: World) -> None:
    world.staged()
    goes_on(world, left=0)


def test_what_audits_have_seen_as_one_stage_does_not_pass(world: World) -> None:
    attempt = world.staged()
    assemble(world.execution.sink, attempt)
    assert len(list(world.stage_folder().glob("part-*"))) == SPLITS
    goes_on(world, left=SPLITS)


def test_other_code_reads_all_of_it(world: World) -> None:
    die(world, 9, code=replace(CODE, code_hash="of before"))
    goes_on(world, left=SPLITS)


def test_other_settings_read_all_of_it(world: World) -> None:
    die(world, 9)
    world.options["sink"] = FileSink(str(world.lake), format="json", options={"ignoreNullFields": "false"})
    goes_on(world, left=SPLITS)


def test_a_file_that_is_read_in_another_way_is_read_again(world: World) -> None:
    die(world, 9)
    world.sources["orders"] = replace(world.sources["orders"], options={"dateFormat": "yyyy"})
    goes_on(world, left=SPLITS)


def test_a_clear_has_all_of_it_made_again(world: World) -> None:
    world.run(0)
    engine = fail(world, 9, clear_number=1)
    assert engine.rows_read == 9, "nothing of the first life"
    again = InlineEngine()
    world.run(0, again, clear_number=1, try_number=2)
    assert again.rows_read == SPLITS - 9, "of the same clear"
    fail(world, 9, clear_number=2)
    world.run(0, last := InlineEngine(), clear_number=3)
    assert last.rows_read == SPLITS, "another clear has it all made again"
    assert world.table()[0] == list(range(SPLITS))
    nothing_is_left(world)


def test_what_is_damaged_is_read_again(world: World) -> None:
    fail(world, 9)
    kept = sorted((world.lake / "_staging").glob("*/lane=live/batch_id=0/subtasks/*/part-*"))
    assert len(kept) == 9
    kept[0].unlink()
    kept[1].write_text("")
    (kept[2].parent / "part-more.json").write_text('{"id": 99}\n')
    shutil.rmtree(kept[3].parent / "_manifest")
    goes_on(world, left=SPLITS - 5)


def test_what_is_not_on_record_is_read_again(world: World) -> None:
    fail(world, 9)
    records = sorted(path for path in (world.root / "checkpoint" / "subtasks").rglob("*-1") if path.is_file())
    assert len(records) == 9
    records[0].unlink()
    records[1].write_text("v1\n{")
    goes_on(world, left=SPLITS - 7)


def test_a_zombie_whose_output_was_taken_cannot_publish(world: World) -> None:
    zombie, job = die(world, 9)
    world.expire_leases()
    fail(world, 0, number=1)
    with pytest.raises(AttemptFencedError):
        world.execution.job(zombie, None)
    InlineEngine().start({"tag": "late"}, job, CODE)
    with pytest.raises(AttemptFencedError):
        world.execution.publish(zombie)
    goes_on(world, left=SPLITS - 9, number=2)


def test_what_a_zombie_finishes_in_a_stage_that_was_dropped_is_not_trusted(world: World) -> None:
    """It goes on in a folder that is made again under it, where what it had written of the same split before is gone;
    its manifest lists what is there, and looks whole."""
    _, job = die(world, 4)
    world.expire_leases()
    world.janitor()
    InlineEngine(transform=lambda _: []).start({"tag": "late"}, job, CODE)
    assert world.stages() == ["live/0 attempt 1"]
    world.janitor()
    assert world.stages() == []
    world.expire_leases()
    engine = InlineEngine()
    world.run(1, engine)
    assert world.table()[0] == list(range(SPLITS)), "and none of the rows is lost"


def test_a_batch_of_another_plan_takes_nothing(world: World) -> None:
    die(world, 9)
    world.expire_leases()
    world.janitor()
    shutil.rmtree(world.root / "checkpoint" / "offsets")
    shutil.rmtree(world.root / "checkpoint" / "sources")
    report = world.janitor()
    assert report.of("finished splits removed") == ["live/0"]


def test_a_sink_that_cannot_take_over_has_the_batch_run_as_one(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.options["sink"] = FilesIntoDatabase(world.root).sink()
    engine = InlineEngine()
    world.run(0, engine)
    assert [job.subtasks for job in engine.jobs] == [()]
    assert "cannot take over" in caplog.text


def test_a_batch_of_one_split_is_run_as_one(tmp_path: Path) -> None:
    world = World(tmp_path, split_wise=True)
    world.land(1, 2)
    world.run(0, engine := InlineEngine())
    assert [job.subtasks for job in engine.jobs] == [()]


@pytest.mark.slow
def test_a_transform_that_fails_at_the_last_split_has_done_the_others(world: World) -> None:
    def transform(sources: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
        if sources["orders"][0]["id"] == SPLITS - 1:
            raise ValueError("nine is not supported")
        return sources["orders"]

    with pytest.raises(TransformError):
        world.run(0, InlineEngine(transform=transform))
    goes_on(world, left=1)


def test_split_wise_pipelines_have_one_source(tmp_path: Path) -> None:
    source = FileSource(str(tmp_path / "landing"))
    with pytest.raises(DefinitionError, match="would see no row of the others"):
        Pipeline(
            "orders",
            checkpoint=str(tmp_path / "checkpoint"),
            sources={"orders": source, "users": FileSource(str(tmp_path / "users"))},
            sink=FileSink(str(tmp_path / "lake")),
            transform="jobs/orders.py:clean",
            split_wise=True,
        )


def test_an_engine_that_knows_no_splits_publishes_no_empty_batch(world: World) -> None:
    """A job that is split by split has no other sources: run as a whole it reads nothing."""

    class Unknowing(InlineEngine):
        def start(self, handle: Any, job: Job, code: Code) -> None:
            super().start(handle, replace(job, subtasks=()), code)

    with pytest.raises(EngineError, match="tells of no split"):
        world.run(0, Unknowing())
    goes_on(world, left=SPLITS)
