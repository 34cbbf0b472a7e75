"""Stage tables as hook and runtime leave them, made by hand."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.staging.hooks import JobContext
from airflow_provider_microbatch.staging.table_sink import TableSink
from tests.sinks.stages import KEY, write_stage


def context(sink: TableSink, epoch: int, key: BatchKey = KEY) -> JobContext:
    return JobContext(
        pipeline=sink.pipeline, key=key, epoch=epoch, run=None, stage=sink.stage(key, epoch).report
    )  # fmt: skip


def create_stage_table(sink: TableSink, epoch: int, *, key: BatchKey = KEY) -> None:
    """CREATED."""
    for hook in sink.hooks():
        hook.on_created(context(sink, epoch, key))


def write_stage_table(
    sink: TableSink, epoch: int, *, key: BatchKey = KEY, rows: int = 3, complete: bool = True
) -> Path:
    """CREATED, then written."""
    create_stage_table(sink, epoch, key=key)
    return write_stage(sink, epoch, key=key, rows=rows, complete=complete)
