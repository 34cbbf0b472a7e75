"""Tasks of a job's pipelines: what is tried again, by whom, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_microbatch import FileSink, FileSource
from airflow_provider_microbatch.exceptions import DefinitionError, IntervalError
from airflow_provider_microbatch.execution.engine import Code, Engine
from airflow_provider_microbatch.graph import JobGraph
from airflow_provider_microbatch.graph.tables import TableJob
from airflow_provider_microbatch.operators.job import JobPipelineOperator, micro_batch_job
from tests.airflow_face.support import context
from tests.execution.world import World
from tests.graph.test_upkeep_of_jobs import failing
from tests.support.inline_engine import InlineEngine


class InlinePipeline(JobPipelineOperator):
    def code(self, context: Any) -> tuple[Code, None]:
        return Code(transform=None), None

    def engine(self) -> Engine:
        return InlineEngine()


def execute(world: World, **given: Any) -> dict[str, Any]:
    task = InlinePipeline(
        task_id="micro_batch", pipeline=world.pipeline, job=str(world.root / "job"), part="orders", sinks=("orders",)
    )
    return task.execute(context(world.root, **given))


def test_a_pause_of_what_is_new_is_none_of_a_data_interval(tmp_path: Path) -> None:
    """No later run would make it up: an interval has one run."""
    world = World(tmp_path)
    world.land(1)
    failing(world)
    with pytest.raises(AirflowFailException, match="has failed once"):
        execute(world, number=1)
    with pytest.raises(AirflowSkipException, match="no unread data in the data interval"):
        execute(world, number=2, run_type="backfill")
    world.options["plan"] = "interval"
    with pytest.raises(IntervalError, match=r"Run the pipeline with plan='live' until"):
        execute(world, number=3)


def retries(plan: str) -> int:
    with (
        DAG("shop", schedule=None, default_args={"retries": 3}) as dag,
        JobGraph("shop", checkpoint="/data/checkpoints/shop", plan=plan) as shop,
    ):
        source = shop.source("orders", FileSource("/data/landing/orders", schema="id long"))
        shop.sink("orders", source, FileSink("/data/lake/orders"))
        shop.by_name()
        micro_batch_job(shop, wait=False)
    found = dag.task_dict["shop.orders.micro_batch"].retries
    assert found is not None
    return found


def test_the_next_run_tries_what_is_new_again_and_retries_an_interval() -> None:
    assert retries("live") == 0
    assert retries("interval") == 3


def test_tables_that_wait_for_their_turn_have_no_data_intervals() -> None:
    """An interval has one run: a table that has no turn in it would never read it."""
    given: dict[str, Any] = {
        "checkpoint": "/data/checkpoints/shop",
        "source": lambda table: FileSource(f"/data/landing/{table}", schema="id long"),
        "sink": lambda table: FileSink(f"/data/lake/{table}"),
    }
    with pytest.raises(DefinitionError, match="plan='interval'"):
        TableJob("shop", tables=["orders"], plan="interval", **given)
    with pytest.raises(DefinitionError, match="'orders' is one text"):
        TableJob("shop", tables="orders", **given)
