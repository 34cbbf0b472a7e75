"""CompactOperator: one task compacts the tables of several pipelines."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.operators.compact import CompactOperator
from tests.airflow_face.support import context
from tests.cli.test_compact import files, split
from tests.execution.world import World


def made(root: Path) -> World:
    world = World(root)
    world.land(1, 2, 3)
    world.run(0)
    split(world, 0)
    return world


def run(bundle: Path, **given: Any) -> Any:
    return CompactOperator(task_id="compact", **given).execute(context(bundle))


def test_it_compacts_each_by_pipeline_or_by_checkpoint_and_logs_the_rate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = made(tmp_path / "one"), made(tmp_path / "two")
    said = run(tmp_path, pipelines=[one.pipeline], checkpoints=[two.pipeline.checkpoint], only_say=True)
    assert [report["files_before"] for report in said] == [3, 3]
    assert files(one) == files(two) == {"batch_id=0": 3}
    with caplog.at_level(logging.INFO):
        reports = run(tmp_path, pipelines=[one.pipeline], checkpoints=[two.pipeline.checkpoint])
    assert [(report["files_after"], report["left"]) for report in reports] == [(1, {}), (1, {})]
    assert files(one) == files(two) == {"batch_id=0": 1}
    assert one.table() == two.table() == {0: [1, 2, 3]}
    assert "3 files of 1 batches are 1 files" in caplog.text
    assert "MB a second" in caplog.text


def test_where_no_pipeline_has_run_there_is_nothing_to_compact(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world, nowhere = World(tmp_path), str(tmp_path / "nowhere")
    assert run(tmp_path, pipelines=[world.pipeline], checkpoints=[nowhere]) == []
    assert f"{nowhere} is no checkpoint yet" in capsys.readouterr().out
    assert not (tmp_path / "checkpoint").exists()
    assert not (tmp_path / "lake").exists()


def test_one_that_cannot_be_compacted_fails_the_task_after_the_others(tmp_path: Path) -> None:
    broken, other = made(tmp_path / "broken"), made(tmp_path / "other")
    broken.lake.rename(tmp_path / "away")
    with pytest.raises(AirflowException, match="broken/lake"):
        run(tmp_path, pipelines=[broken.pipeline, other.pipeline])
    assert files(other) == {"batch_id=0": 1}


@pytest.mark.parametrize("given", [{}, {"pipelines": []}, {"checkpoints": "/one"}, {"target_bytes": 0}])
def test_arguments_that_are_none_are_refused_when_the_dag_is_parsed(tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match="'compact'"):
        CompactOperator(task_id="compact", **{"checkpoints": ["/one"] if "target_bytes" in given else (), **given})
