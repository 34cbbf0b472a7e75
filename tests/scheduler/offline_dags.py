"""The DAGs of the test of offline jobs, copied into the DAGs folder; on an engine without a JVM. Both run all the time,
as far as Airflow is asked."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from airflow.sdk import DAG

from airflow_provider_microbatch import FileSink, FileSource
from airflow_provider_microbatch.graph import JobGraph
from airflow_provider_microbatch.operators.job import JobPipelineOperator, micro_batch_job
from tests.support.inline_engine import InlineEngine

HOME = Path(os.environ.get("MICROBATCH_HOME", "/opt/microbatch"))


class _Inline(JobPipelineOperator):
    def engine(self) -> InlineEngine:
        return InlineEngine()


def _source(name: str, *, bounded: bool = True) -> FileSource:
    return FileSource(str(HOME / "landing" / name), schema="id long", max_files=1, bounded=bounded)


def _sink(name: str) -> FileSink:
    return FileSink(str(HOME / "lake" / name), format="json")


def _job(name: str, *, when_complete: str, deferrable: bool) -> None:
    with JobGraph(name, checkpoint=str(HOME / "checkpoints" / name)) as job:
        job.sink("orders", job.source("orders", _source(f"{name}_orders")), _sink(f"{name}_orders"))
        people = (job.source(one, _source(f"{name}_{one}")) for one in ("users", "guests"))
        job.sink("people", job.union(*people), _sink(f"{name}_people"))
    micro_batch_job(job, operator=_Inline, poke_interval=0.5, deferrable=deferrable, when_complete=when_complete)


with DAG("offline", schedule="@continuous", start_date=datetime(2026, 1, 1), max_active_runs=1):
    _job("offline", when_complete="pause", deferrable=True)

with DAG("offline_stays", schedule="@continuous", start_date=datetime(2026, 1, 1), max_active_runs=1):
    _job("offline_stays", when_complete="skip", deferrable=False)

with DAG("offline_beside", schedule="@continuous", start_date=datetime(2026, 1, 1), max_active_runs=1):
    with JobGraph("offline_beside", checkpoint=str(HOME / "checkpoints" / "offline_beside")) as beside:
        past = beside.source("past", _source("offline_beside_past"))
        new = beside.source("new", _source("offline_beside_new", bounded=False))
        beside.sink("orders", beside.union(past, new), _sink("offline_beside"))
    micro_batch_job(beside, operator=_Inline, poke_interval=0.5, deferrable=True, when_complete="pause")
