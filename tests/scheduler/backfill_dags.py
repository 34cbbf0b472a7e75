"""DAGs of the backfill tests, copied into the DAGs folder. Two run on an engine without a JVM, one on spark-submit.

Files in ``MICROBATCH_HOME`` tell the engine to fail, or to wait in the lanes of intervals. Their days begin at the hour
``MICROBATCH_HOUR`` (UTC).
"""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path

from airflow.sdk import DAG, CronDataIntervalTimetable, CronPartitionTimetable

from airflow_provider_microbatch import FileSink, FileSource, Pipeline
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.runtime.job import Job
from tests.airflow_face.support import InlineOperator
from tests.support.inline_engine import InlineEngine

HOME = Path(os.environ.get("MICROBATCH_HOME", "/opt/microbatch"))
DAILY = f"0 {os.environ.get('MICROBATCH_HOUR', '0')} * * *"
START = datetime(2026, 1, 1)


def _obey(job: Job) -> None:
    if (HOME / f"{job.pipeline}_fails").exists():
        raise EngineError("told to fail")
    while job.lane != "live" and (HOME / f"{job.pipeline}_waits").exists():
        time.sleep(0.1)


def _pipeline(name: str, *, format: str, plan: str = "live") -> Pipeline:
    return Pipeline(
        name,
        checkpoint=str(HOME / "checkpoints" / name),
        sources={"orders": FileSource(str(HOME / "landing" / name), schema="id long")},
        sink=FileSink(str(HOME / "lake" / name), format=format),
        plan=plan,
    )


def _inline(name: str, timetable: CronDataIntervalTimetable | CronPartitionTimetable) -> None:
    with DAG(name, schedule=timetable, start_date=START, catchup=False, max_active_runs=1):
        InlineOperator(
            task_id="micro_batch",
            pipeline=_pipeline(name, format="json"),
            inline=InlineEngine(before_stage=_obey),
            max_active_tis_per_dag=None,
        )


_inline("backfill_days", CronDataIntervalTimetable(DAILY, timezone="UTC"))
_inline("backfill_partitions", CronPartitionTimetable(DAILY, timezone="UTC"))

with DAG("backfill_spark", schedule=DAILY, start_date=START, catchup=False, max_active_runs=1):
    MicroBatchOperator(
        task_id="micro_batch", pipeline=_pipeline("backfill_spark", format="parquet", plan="interval")
    )  # fmt: skip
