"""MicroBatchJanitorOperator: one task cleans up after several pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.operators.janitor import MicroBatchJanitorOperator
from airflow_provider_microbatch.sinks.file import FileSink
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
    world.stage_folder().mkdir(parents=True)
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


def test_a_definition_of_another_version_is_the_trouble_of_its_own_checkpoint(tmp_path: Path) -> None:
    newer, other = dead(tmp_path / "newer"), dead(tmp_path / "other")
    definition = next((tmp_path / "newer" / "checkpoint" / "microbatch" / "pipelines").iterdir())
    text = definition.read_text()
    assert '"path":' in text
    definition.write_text(text.replace('"path":', '"shine":"bright","path":'))
    with pytest.raises(AirflowException, match=r"FileS\w+ has no field 'shine'"):
        run(tmp_path, checkpoints=[newer.pipeline.checkpoint, other.pipeline.checkpoint])
    assert other.stages() == []


@pytest.mark.parametrize("method", ["open", "stages"])
def test_whatever_a_sink_raises_the_other_checkpoints_are_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    broken, other = dead(tmp_path / "broken"), dead(tmp_path / "other")
    real = getattr(FileSink, method)

    def raising(self: FileSink, *given: Any) -> Any:
        if self.path == str(broken.lake):
            raise KeyError("a sink of the user's")
        return real(self, *given)

    monkeypatch.setattr(FileSink, method, raising)
    with pytest.raises(AirflowException, match="a sink of the user's"):
        run(tmp_path, pipelines=[broken.pipeline, other.pipeline])
    monkeypatch.undo()
    assert other.stages() == []


@pytest.mark.parametrize("wrong", [{}, {"pipelines": []}, {"checkpoints": "/data"}, {"pipelines": ["/data"]}])
def test_wrong_arguments_are_refused_when_the_dag_is_parsed(wrong: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        MicroBatchJanitorOperator(task_id="janitor", **wrong)
