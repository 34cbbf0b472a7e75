"""The DAG of the job test, copied into the DAGs folder; on an engine without a JVM. One of three pipelines fails for as
long as the file ``job_fails`` is in ``MICROBATCH_HOME``; and a job of tables, two of which have their turn in a run."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from airflow.sdk import DAG

from airflow_provider_microbatch import FileSink, FileSource
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.graph import JobGraph
from airflow_provider_microbatch.graph.tables import TableJob, folders_of
from airflow_provider_microbatch.operators.job import JobPipelineOperator, micro_batch_job
from airflow_provider_microbatch.operators.tables import TableOperator, micro_batch_tables
from airflow_provider_microbatch.runtime.job import Job
from tests.support.inline_engine import InlineEngine

HOME = Path(os.environ.get("MICROBATCH_HOME", "/opt/microbatch"))


def _obey(job: Job) -> None:
    if job.pipeline == "job.broken" and (HOME / "job_fails").exists():
        raise EngineError("told to fail")


class _Inline(JobPipelineOperator):
    def engine(self) -> InlineEngine:
        return InlineEngine(before_stage=_obey)


def _source(name: str) -> FileSource:
    return FileSource(str(HOME / "landing" / f"job_{name}"), schema="id long", max_files=1)


def _sink(name: str) -> FileSink:
    return FileSink(str(HOME / "lake" / f"job_{name}"), format="json")


with DAG("job", schedule="@continuous", start_date=datetime(2026, 1, 1), max_active_runs=1):
    with JobGraph("job", checkpoint=str(HOME / "checkpoints" / "job")) as job:
        for name in ("orders", "broken"):
            job.sink(name, job.source(name, _source(name)), _sink(name))
        job.sink(
            "people",
            job.union(job.source("users", _source("users")), job.source("guests", _source("guests"))),
            _sink("people"),
        )
    micro_batch_job(job, deferrable=True, poke_interval=0.5, retry_seconds=5, operator=_Inline)


class _InlineTable(TableOperator):
    def engine(self) -> InlineEngine:
        return InlineEngine()


with DAG("tables", schedule=None, max_active_runs=1):
    micro_batch_tables(
        TableJob(
            "tables",
            checkpoint=str(HOME / "checkpoints" / "tables"),
            tables=folders_of(str(HOME / "landing" / "tables")),
            source=lambda table: FileSource(str(HOME / "landing" / "tables" / table), schema="id long", max_files=1),
            sink=lambda table: FileSink(str(HOME / "lake" / "tables" / table), format="json"),
        ),
        max_pipelines=2,
        operator=_InlineTable,
    )
