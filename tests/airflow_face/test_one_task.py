"""One task of a DAG makes the batches of a checkpoint: two are refused, where the DAG is read or where they run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.operators.drain import drain
from airflow_provider_microbatch.operators.janitor import MicroBatchJanitorOperator
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.operators.steps import PlanMicroBatchOperator, micro_batch_steps
from airflow_provider_microbatch.sensors.new_data import NewDataSensor
from tests.airflow_face.support import InlineOperator, context, transform_file
from tests.execution.world import World
from tests.support.inline_engine import InlineEngine


@pytest.fixture
def world(tmp_path: Path) -> World:
    transform_file(tmp_path / "bundle")
    world = World(tmp_path)
    world.land(1)
    return world


def dag() -> DAG:
    return DAG("orders", schedule=None, max_active_runs=1)


def batch(world: World, name: str) -> Any:
    return MicroBatchOperator(task_id=name, pipeline=world.pipeline)


def decorated(world: World, name: str) -> Any:
    pipeline = dataclasses.replace(world.pipeline, transform=None)

    @task.micro_batch(task_id=name, pipeline=pipeline)
    def transform(batch: Any) -> Any:
        return batch

    return transform()


def slots(world: World, name: str) -> Any:
    return drain(world.pipeline, task_id=name)


def steps(world: World, name: str) -> Any:
    return micro_batch_steps(world.pipeline, group_id=name)


KINDS = [batch, decorated, slots, steps]


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_two_tasks_that_name_one_checkpoint_are_refused_and_named(world: World, first: Any, second: Any) -> None:
    named = r"DAG 'orders': tasks 'one(\.plan)?' and 'two(\.plan)?' make batches of one checkpoint, .*/checkpoint"
    with dag():
        first(world, "one")
        with pytest.raises(DefinitionError, match=named):
            second(world, "two")


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_beside_one_is_no_second(world: World, kind: Any) -> None:
    with dag():
        NewDataSensor(task_id="new_data", pipeline=world.pipeline)
        kind(world, "one")
        MicroBatchJanitorOperator(task_id="janitor", pipelines=[world.pipeline])
        other = dataclasses.replace(world.pipeline, checkpoint=str(world.root / "other"))
        MicroBatchOperator(task_id="two", pipeline=other)


def test_another_dag_may_name_it(world: World) -> None:
    with dag():
        batch(world, "one")
    with DAG("reprocess", schedule=None):
        batch(world, "one")


def test_one_is_mapped_over_its_own_instances(world: World) -> None:
    with dag() as found:
        mapped = slots(world, "one")
    assert mapped.unmap({"slot": 1}).slot == 1
    assert found.task_ids == ["one"]


@pytest.mark.parametrize("kind", [MicroBatchOperator, PlanMicroBatchOperator])
def test_what_was_put_into_the_dag_later_is_refused_when_it_runs_and_nothing_is_written(
    world: World, kind: Any
) -> None:
    found = dag()
    one, two = batch(world, "one"), kind(task_id="two", pipeline=world.pipeline)
    found.add_task(one)
    found.add_task(two)
    given = {**context(world.root / "bundle", task_id="two"), "dag": found}
    before = world.files()
    with pytest.raises(DefinitionError, match="tasks 'one' and 'two' make batches of one checkpoint"):
        two.execute(given)
    assert world.files() == before


def test_one_that_runs_alone_makes_its_batch(world: World) -> None:
    with dag() as found:
        one = InlineOperator(task_id="one", pipeline=world.pipeline, inline=InlineEngine())
        NewDataSensor(task_id="new_data", pipeline=world.pipeline) >> one
    one.execute({**context(world.root / "bundle", task_id="one"), "dag": found})
    assert world.table() == {0: [1]}
