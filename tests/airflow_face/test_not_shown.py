"""What Airflow keeps of a mapped task in its database: no setting that may hold a secret."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_microbatch import FileSink, FileSource, Pipeline
from airflow_provider_microbatch.graph.tables import TableJob
from airflow_provider_microbatch.operators.drain import drain
from airflow_provider_microbatch.operators.tables import micro_batch_tables

GIVEN: dict[str, Any] = {"conf": {"spark.password": "hunter2"}, "env_vars": {"TOKEN": "hunter2"}}


def a_drain() -> tuple[str, dict[str, Any]]:
    source, sink = FileSource("/data/landing/orders", schema="id long"), FileSink("/data/lake/orders")
    drain(Pipeline("orders", checkpoint="/data/c", sources={"orders": source}, sink=sink), **GIVEN)
    return "micro_batch", {"slot": 1}


def tables() -> tuple[str, dict[str, Any]]:
    job = TableJob(
        "shop",
        checkpoint="/data/checkpoints/shop",
        tables=["orders"],
        source=lambda table: FileSource(f"/data/landing/{table}", schema="id long"),
        sink=lambda table: FileSink(f"/data/lake/{table}"),
    )
    micro_batch_tables(job, **GIVEN)
    return "shop.micro_batch", {"table": "orders"}


@pytest.mark.parametrize("make", [a_drain, tables])
def test_a_mapped_task_keeps_its_settings_to_itself(make: Callable[[], tuple[str, dict[str, Any]]]) -> None:
    with DAG("orders", schedule=None, max_active_runs=1) as dag:
        task_id, instance = make()
    assert "hunter2" not in json.dumps(DagSerialization.to_dict(dag))
    task: Any = dag.task_dict[task_id]
    unmapped = task.unmap(instance)
    assert dict(unmapped._conf) == GIVEN["conf"]
    assert dict(unmapped._engine_arguments["env_vars"]) == GIVEN["env_vars"]
    assert unmapped.engine() is not None
