"""Stage tables as hook and runtime leave them, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.job_status import JobContext
from airflow_provider_microbatch.sinks.table import TableSink
from tests.sinks.stages import BATCH, write_stage


def context(sink: TableSink, epoch: int, batch: BatchIdentity = BATCH) -> JobContext:
    return JobContext(
        pipeline=sink.pipeline,
        key=batch.key,
        epoch=epoch,
        run=None,
        stage=sink.stage(batch, epoch).report,
        checkpoint=batch.checkpoint,
    )


def create_stage_table(sink: TableSink, epoch: int, *, batch: BatchIdentity = BATCH) -> None:
    """CREATED."""
    for hook in sink.hooks():
        hook.on_created(context(sink, epoch, batch))


def write_stage_table(
    sink: TableSink,
    epoch: int,
    *,
    batch: BatchIdentity = BATCH,
    rows: int = 3,
    complete: bool = True,
    below: Sequence[str] = (".",),
) -> Path:
    """CREATED, then written."""
    create_stage_table(sink, epoch, batch=batch)
    return write_stage(sink, epoch, batch=batch, rows=rows, complete=complete, below=below)


def write_partitions(sink: TableSink, epoch: int, *, below: Sequence[str] = (), **given: Any) -> Path:
    """The same of a table with the partition column ``of``; without ``below`` the attempt has one partition, which is
    its alone."""
    return write_stage_table(sink, epoch, below=below or (f"of={epoch}",), **given)
