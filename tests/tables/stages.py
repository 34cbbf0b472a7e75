"""Stage tables as hook and runtime leave them, made by hand."""

from __future__ import annotations

from pathlib import Path

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
    sink: TableSink, epoch: int, *, batch: BatchIdentity = BATCH, rows: int = 3, complete: bool = True
) -> Path:
    """CREATED, then written."""
    create_stage_table(sink, epoch, batch=batch)
    return write_stage(sink, epoch, batch=batch, rows=rows, complete=complete)
