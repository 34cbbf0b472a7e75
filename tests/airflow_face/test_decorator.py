"""@task.micro_batch: the function's source travels."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_microbatch.decorators.micro_batch import MicroBatchDecoratedOperator, micro_batch_task
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.execution.engine import Code, Engine, Handle
from airflow_provider_microbatch.runtime.job import Job
from tests.airflow_face.support import context
from tests.execution.world import World
from tests.support.inline_engine import InlineEngine


class ImportingEngine(InlineEngine):
    """Runs the module that travels, as the driver does."""

    def start(self, handle: Handle, job: Job, code: Code) -> None:
        assert job.transform is not None
        (path,) = (path for path in code.files if Path(path).stem == job.transform.module)
        names: dict[str, Any] = {}
        exec(compile(Path(path).read_text(), path, "exec"), names)
        self.transform = names[job.transform.function]
        self.code = code
        super().start(handle, job, code)


def made(world: World, engine: Engine, function: Any, **kwargs: Any) -> MicroBatchDecoratedOperator:
    with DAG("d", schedule=None):
        operator = micro_batch_task(function, pipeline=world.pipeline, **kwargs)().operator
    operator.engine = lambda: engine
    return operator  # type: ignore[no-any-return]


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, transform=None)
    (tmp_path / "bundle").mkdir()
    return world


def test_the_function_is_the_transform(world: World) -> None:
    def big(batch: Any) -> Any:
        import math  # what it needs it imports itself

        return [row for row in batch["orders"] if math.sqrt(row["id"]) > 1]

    world.land(1, 2, 3)
    engine = ImportingEngine()
    summary = made(world, engine, big).execute(context(world.root / "bundle"))
    assert world.table() == {0: [2, 3]}
    assert summary["state"] == "committed"
    assert not any(Path(path).exists() for path in engine.code.files)


def test_several_sources_are_combined_by_the_function(tmp_path: Path) -> None:
    def both(batch: Any) -> Any:
        return batch["a"] + batch["b"]

    world = World(tmp_path, sources=("a", "b"), transform=None)
    world.land(1, source="a")
    world.land(2, source="b")
    made(world, ImportingEngine(), both).execute(context(tmp_path))
    assert world.table() == {0: [1, 2]}


def test_files_of_the_pipeline_travel_too(world: World) -> None:
    def same(batch: Any) -> Any:
        return batch["orders"]

    (world.root / "bundle" / "helper.py").write_text("VALUE = 1\n")
    world.options["py_files"] = ["helper.py"]
    world.land(1)
    engine = ImportingEngine()
    made(world, engine, same).execute(context(world.root / "bundle"))
    assert "helper.py" in {Path(path).name for path in engine.code.files}


def test_the_file_is_named_by_the_source_so_that_it_is_the_same_at_every_parse(world: World) -> None:
    def same(batch: Any) -> Any:
        return batch["orders"]

    def other(batch: Any) -> Any:
        return batch["orders"][:1]

    first, again, different = (made(world, InlineEngine(), function) for function in (same, same, other))
    assert first.pipeline == again.pipeline
    assert first.pipeline.transform != different.pipeline.transform
    assert first.pipeline.transform is not None
    assert first.pipeline.transform.endswith(".py:same")


DAG_FILE = """
from airflow.sdk import DAG, task
from airflow_provider_microbatch import FileSink, FileSource, Pipeline

pipeline = Pipeline("p", checkpoint="/c", sources={"orders": FileSource("/l")}, sink=FileSink("/t"))
with DAG("inline", schedule=None):
    @task.micro_batch(pipeline=pipeline)
    def orders(batch):
        return batch.sources["orders"]

    made = orders()
"""


def test_the_decorator_itself_does_not_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inline_dag.py").write_text(DAG_FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import inline_dag  # type: ignore[import-not-found]

    operator = inline_dag.made.operator
    sys.modules.pop("inline_dag")
    assert operator.get_python_source() == 'def orders(batch):\n    return batch.sources["orders"]\n'
    assert operator.task_id == "orders"


def test_a_pipeline_with_a_transform_of_its_own_is_refused(tmp_path: Path) -> None:
    def same(batch: Any) -> Any:
        return batch["orders"]

    with pytest.raises(DefinitionError, match="leave out"):
        made(World(tmp_path), InlineEngine(), same)


def test_arguments_are_refused_since_spark_calls_it(world: World) -> None:
    def same(batch: Any) -> Any:
        return batch["orders"]

    with DAG("d", schedule=None), pytest.raises(DefinitionError, match="without arguments"):
        micro_batch_task(same, pipeline=world.pipeline)({"id": 1})


def test_a_lambda_is_refused(world: World) -> None:
    with DAG("d", schedule=None), pytest.raises(DefinitionError, match="plain function"):
        micro_batch_task(lambda batch: batch, pipeline=world.pipeline, task_id="x")()
