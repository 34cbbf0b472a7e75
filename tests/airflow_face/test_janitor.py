"""MicroBatchJanitorOperator: one task cleans up after several pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.operators.janitor import MicroBatchJanitorOperator
from tests.airflow_face.support import context
from tests.execution.world import CODE, World, run_identity
from tests.support.inline_engine import InlineEngine


def dead(root: Path) -> World:
    """A pipeline with the stage of a killed task."""
    world = World(root)
    world.land(1)
    planned = world.execution.plan(run_identity(0))
    assert planned is not None
    world.execution.open_attempt(key=planned.key, run=run_identity(0), code=CODE, engine=InlineEngine())
    (world.lake / "_staging" / "lane=live" / "batch_id=0" / "attempt=1").mkdir(parents=True)
    world.expire_leases()
    return world


def run(bundle: Path, **kwargs: Any) -> Any:
    return MicroBatchJanitorOperator(task_id="janitor", **kwargs).execute(context(bundle))


def test_it_cleans_up_after_each_by_pipeline_or_by_checkpoint(tmp_path: Path) -> None:
    one, two = dead(tmp_path / "one"), dead(tmp_path / "two")
    said = run(tmp_path, pipelines=[one.pipeline], checkpoints=[two.pipeline.checkpoint], only_say=True)
    assert [report["dry_run"] for report in said] == [True, True]
    assert one.stages() == two.stages() == ["live/0 attempt 1"]
    reports = run(tmp_path, pipelines=[one.pipeline], checkpoints=[two.pipeline.checkpoint])
    assert [report["actions"][0]["kind"] for report in reports] == ["stage dropped"] * 2
    assert one.stages() == two.stages() == []


def test_a_pipeline_that_never_ran_has_nothing_to_clean_up(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert run(tmp_path, pipelines=[world.pipeline])[0]["actions"] == []
    assert not (tmp_path / "checkpoint").exists()


def test_one_that_cannot_be_cleaned_up_fails_the_task_after_the_others(tmp_path: Path) -> None:
    broken, other = dead(tmp_path / "broken"), dead(tmp_path / "other")
    (tmp_path / "broken" / "checkpoint" / "metadata").write_bytes(b"")
    with pytest.raises(AirflowException, match=r"broken/checkpoint/metadata is empty"):
        run(tmp_path, pipelines=[broken.pipeline, other.pipeline])
    assert other.stages() == []


@pytest.mark.parametrize("wrong", [{}, {"pipelines": []}, {"checkpoints": "/data"}, {"pipelines": ["/data"]}])
def test_wrong_arguments_are_refused_when_the_dag_is_parsed(wrong: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        MicroBatchJanitorOperator(task_id="janitor", **wrong)
