"""MicroBatchOperator: one task run, one batch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.log import MetadataLog
from airflow_provider_microbatch.exceptions import AttemptCanceledError, DefinitionError, TransformError
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.operators.steps import PlanMicroBatchOperator
from airflow_provider_microbatch.runtime.job import Job
from tests.airflow_face.support import InlineOperator, context, transform_file
from tests.execution.world import CODE, World, run_identity
from tests.support.hooks import Diary
from tests.support.inline_engine import InlineEngine


@pytest.fixture
def world(tmp_path: Path) -> World:
    transform_file(tmp_path / "bundle")
    world = World(tmp_path)
    world.landing()
    return world


def operator(world: World, engine: InlineEngine | None = None, **kwargs: Any) -> InlineOperator:
    return InlineOperator(task_id="micro_batch", pipeline=world.pipeline, inline=engine or InlineEngine(), **kwargs)


def test_a_run_publishes_and_commits_one_batch_and_returns_its_summary(world: World) -> None:
    world.land(1, 2, 3)
    given = context(world.root / "bundle", number=7)
    summary = operator(world).execute(given)
    assert world.table() == {0: [1, 2, 3]}
    assert (summary["key"], summary["state"], summary["rows_out"]) == ("live/0", "committed", 3)
    assert summary["run"]["run_id"] == "run-7"
    assert given["batch_label"] == "batch 0 · 3 rows"


def test_nothing_new_is_a_skip(world: World) -> None:
    with pytest.raises(AirflowSkipException, match="nothing new"):
        operator(world).execute(context(world.root / "bundle"))


def test_the_attempt_records_bundle_version_and_code_hash(world: World) -> None:
    world.land(1)
    operator(world).execute(context(world.root / "bundle"))
    (attempt,) = world.checkpoint.attempts.all(BatchKey("live", 0))
    assert attempt.code["bundle_name"] == "dags-folder"
    assert attempt.code["bundle_version"] == "abc123"
    assert len(attempt.code["code_hash"]) == 64
    assert attempt.run is not None
    assert attempt.run.ti_id == "ti-1-micro_batch-0-1"


def test_a_missing_transform_is_found_before_anything_is_written(world: World) -> None:
    world.land(1)
    (world.root / "bundle" / "jobs" / "orders.py").unlink()
    with pytest.raises(DefinitionError, match=r"jobs/orders\.py"):
        operator(world).execute(context(world.root / "bundle"))
    assert world.files() == {}


def test_a_failing_transform_leaves_the_batch_planned_and_mended_code_takes_it_up(world: World) -> None:
    def broken(sources: Any) -> Any:
        raise ValueError("no such column")

    world.land(1)
    given = context(world.root / "bundle")
    with pytest.raises(TransformError, match="no such column") as error:
        operator(world, InlineEngine(transform=broken)).execute(given)
    assert str(error.value).rstrip().endswith("ValueError('no such column')")
    assert given["batch_label"] == "batch 0"
    assert world.table() == {}
    assert world.stages() == []
    world.land(2)
    operator(world).execute(context(world.root / "bundle", number=2))
    assert world.table() == {0: [1]}


@pytest.mark.parametrize("moment", ["before_stage", "after_stage"])
def test_on_kill_cancels_the_engine_and_nothing_is_published_after_it(world: World, moment: str) -> None:
    world.land(1)
    engine = InlineEngine()
    task = operator(world, engine)

    def kill(job: Job) -> None:
        task.on_kill()

    setattr(engine, moment, kill)
    with pytest.raises(AttemptCanceledError):
        task.execute(context(world.root / "bundle"))
    assert engine.cancelled
    assert world.table() == {}
    assert world.stages() == []
    operator(world).execute(context(world.root / "bundle", try_number=2))
    assert world.table() == {0: [1]}


@pytest.mark.parametrize("operator_class", [InlineOperator, PlanMicroBatchOperator])
def test_who_loses_the_put_of_a_plan_skips_and_names_the_winner(
    world: World, operator_class: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MetadataLog.add

    def add(self: Any, batch_id: int, entry: Any) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(MetadataLog, "add", real)
            world.execution.plan(run_identity(7))
        return real(self, batch_id, entry)

    world.land(1)
    monkeypatch.setattr(MetadataLog, "add", add)
    arguments = {"inline": InlineEngine()} if operator_class is InlineOperator else {}
    task = operator_class(task_id="micro_batch", pipeline=world.pipeline, **arguments)
    with pytest.raises(AirflowSkipException, match="run-7"):
        task.execute(context(world.root / "bundle", number=8))


def test_on_kill_before_execute_is_harmless(world: World) -> None:
    operator(world).on_kill()


def test_batches_are_serial_by_default_and_default_args_may_say_otherwise(world: World) -> None:
    assert MicroBatchOperator(task_id="a", pipeline=world.pipeline).max_active_tis_per_dag == 1
    with DAG("d", default_args={"max_active_tis_per_dag": 4}):
        assert MicroBatchOperator(task_id="a", pipeline=world.pipeline).max_active_tis_per_dag == 4


def test_no_setting_that_may_hold_a_secret_is_a_rendered_field(world: World) -> None:
    assert not {"conf", "env_vars", "pipeline"} & set(MicroBatchOperator.template_fields)


def test_spark_arguments_reach_the_engine(world: World) -> None:
    task = MicroBatchOperator(task_id="a", pipeline=world.pipeline, executor_memory="3g", packages="a:b:1")
    hook_arguments = task.engine()._hook_arguments  # type: ignore[attr-defined]
    assert hook_arguments["executor_memory"] == "3g"
    assert hook_arguments["packages"] == "a:b:1"


def test_several_sources_without_a_transform_are_refused_where_the_task_is_written(tmp_path: Path) -> None:
    pipeline = World(tmp_path, sources=("a", "b"), transform=None).pipeline
    with pytest.raises(DefinitionError, match="needs a transform"):
        MicroBatchOperator(task_id="micro_batch", pipeline=pipeline)


def test_what_is_no_pipeline_is_refused() -> None:
    with pytest.raises(DefinitionError, match="must be a Pipeline, not dict"):
        MicroBatchOperator(task_id="micro_batch", pipeline={})  # type: ignore[arg-type]


def test_without_a_bundle_paths_begin_at_the_dag_files_folder(world: World) -> None:
    # dag.test() gives a task no bundle.
    world.land(1)
    given = context(world.root / "elsewhere")
    del given["ti"].bundle_instance
    given["dag"] = SimpleNamespace(task_dict={}, fileloc=str(world.root / "bundle" / "orders.py"))
    operator(world).execute(given)
    assert world.table() == {0: [1]}


def test_a_batch_that_another_run_is_alive_at_is_a_skip_that_names_it(world: World, tmp_path: Path) -> None:
    world.land(1)
    planned = world.execution.plan(run_identity(7))
    assert planned is not None
    world.execution.open_attempt(key=planned.key, run=run_identity(7), code=CODE, engine=InlineEngine())
    with pytest.raises(AirflowSkipException, match="attempt 1 of run 'run-7' of DAG 'orders' is alive"):
        operator(world).execute(context(tmp_path / "bundle"))


def test_a_hook_of_the_dag_file_is_refused_when_the_dag_is_parsed(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.options["hooks"] = (Diary(str(tmp_path / "diary")),)
    operator(world)
    monkeypatch.setattr(Diary, "__module__", "unusual_prefix_0123_orders")
    with pytest.raises(DefinitionError, match="cannot be imported by another process"):
        operator(world)


def test_a_batch_that_is_set_aside_fails_its_task_for_good_and_the_next_run_goes_on(world: World) -> None:
    def broken(sources: Any) -> Any:
        raise ValueError("no such column")

    world.options |= {"on_failure": "set_aside", "set_aside_after": 1}
    world.land(1)
    given = context(world.root / "bundle")
    with pytest.raises(AirflowFailException, match=r"live/0 was set aside[\s\S]*no such column"):
        operator(world, InlineEngine(transform=broken)).execute(given)
    assert given["batch_label"] == "batch 0 · set aside"
    world.land(2)
    operator(world).execute(context(world.root / "bundle", number=2))
    assert world.table() == {1: [2]}
    summary = operator(world).execute(context(world.root / "bundle", clear_number=1))
    assert summary["state"] == "committed"
    assert world.table() == {0: [1], 1: [2]}
