"""A Delta table in the tests' own bucket, and what a reader finds there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks import OpenSink, SinkContext
from airflow_provider_microbatch.sinks.delta import DeltaSink
from tests.sinks.delta_stages import write_delta_stage
from tests.sinks.stages import batch_of, expect
from tests.support import object_store

Rows = Counter[tuple[int | None, int]]
"""How many rows there are of each batch and attempt."""


@pytest.fixture
def sink(tmp_path: Path) -> OpenSink:
    return opened(tmp_path)


def opened(folder: Path, **given: Any) -> OpenSink:
    return DeltaSink(f"{object_store.address(folder)}/orders", packages=[], **given).open(SinkContext())


def publish(sink: OpenSink, number: int, *, rows: int = 3, epoch: int = 1) -> None:
    write_delta_stage(sink, epoch, batch=batch_of(BatchKey("live", number)), rows=rows)
    sink.publish(expect(BatchKey("live", number)), epoch)


def table(folder: Path, **given: Any) -> DeltaTable:
    return DeltaTable(uri(folder), storage_options=OPTIONS, **given)


def uri(folder: Path) -> str:
    return f"s3://{object_store.BUCKET}{folder}/orders"


def rows(folder: Path) -> Rows:
    found = table(folder).to_pyarrow_table(columns=["batch_id", "epoch"]).to_pylist()
    return Counter((row["batch_id"], row["epoch"]) for row in found)


def keys(folder: Path, below: str) -> list[str]:
    """Keys below a folder of the table, relative to the table's."""
    return [key for key in object_store.keys(folder / "orders") if key.startswith(f"{below}/")]


def optimize_and_vacuum(folder: Path) -> None:
    table(folder).optimize.compact()
    table(folder).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)


OPTIONS = {"aws_conditional_put": "etag"}
"""Another writer's: the environment has the rest."""
