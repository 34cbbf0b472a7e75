"""A Delta table of the tests' own, what is published into it, and what a reader finds there."""

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


def opened(root: Path, **given: Any) -> OpenSink:
    return DeltaSink(str(root), **given).open(SinkContext())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "my orders"


@pytest.fixture
def sink(root: Path) -> OpenSink:
    return opened(root)


def publish(sink: OpenSink, number: int, *, rows: int = 3, epoch: int = 1) -> None:
    write_delta_stage(sink, epoch, batch=batch_of(BatchKey("live", number)), rows=rows)
    sink.publish(expect(BatchKey("live", number)), epoch)


def table(root: Path) -> DeltaTable:
    return DeltaTable(root.as_uri())


def rows(root: Path) -> Counter[tuple[int, int]]:
    """How many rows there are of each batch and attempt."""
    found = table(root).to_pyarrow_table(columns=["batch_id", "epoch"]).to_pylist()
    return Counter((row["batch_id"], row["epoch"]) for row in found)


def optimize_and_vacuum(root: Path) -> None:
    table(root).optimize.compact()
    table(root).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)


def damage(sink: OpenSink, number: int) -> str | None:
    """What the table tells of the live lane's batch that is not as it was published."""
    asked = expect(BatchKey("live", number))
    found = sink.contains(asked)
    assert found is not None
    return sink.damage(asked, found)
