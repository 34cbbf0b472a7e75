"""The DAGs of the test of offline jobs, copied into the DAGs folder; on an engine without a JVM. Both run all the time,
as far as Airflow is asked."""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime
from pathlib import Path

from airflow.sdk import DAG

from airflow_provider_microbatch import FileSink, FileSource
from airflow_provider_microbatch.graph import JobGraph
from airflow_provider_microbatch.operators.job import JobPipelineOperator, micro_batch_job
from airflow_provider_microbatch.runtime.job import Job
from tests.graph.run_hooks import RunDiary
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


def _obey(job: Job) -> None:
    """What the file ``hooked_<pipeline>`` in ``MICROBATCH_HOME`` tells: to wait, to fail, or to die."""
    told = HOME / job.pipeline.replace(".", "_")
    while told.exists() and told.read_text() == "wait":
        time.sleep(0.2)
    if told.exists() and told.read_text() == "die":
        os.kill(os.getpid(), signal.SIGKILL)


class _Told(JobPipelineOperator):
    def engine(self) -> InlineEngine:
        return InlineEngine(before_stage=_obey)


with DAG("hooked", schedule=None, max_active_runs=1):
    with JobGraph(
        "hooked", checkpoint=str(HOME / "checkpoints" / "hooked"), run_hooks=[RunDiary(str(HOME / "hooked_diary"))]
    ) as hooked:
        for name in ("orders", "people"):
            hooked.sink(name, hooked.source(name, _source(f"hooked_{name}", bounded=False)), _sink(f"hooked_{name}"))
    micro_batch_job(hooked, operator=_Told, wait=False, retry_seconds=1)
