"""A streaming loop whose batches need no Spark: what is under test is which run Airflow lets go first."""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_microbatch import FileSink, FileSource, Pipeline
from airflow_provider_microbatch.sensors.new_data import NewDataSensor
from tests.support.gated_engine import GatedOperator

HOME = os.environ["MICROBATCH_HOME"]

loop = Pipeline(
    "loop",
    checkpoint=f"{HOME}/checkpoints/loop",
    sources={"orders": FileSource(f"{HOME}/landing/loop", format="json", schema="id long")},
    sink=FileSink(f"{HOME}/lake/loop", format="json"),
)

with DAG("loop", schedule="@continuous", start_date=datetime(2026, 1, 1), max_active_runs=1):
    NewDataSensor(task_id="new_data", pipeline=loop, deferrable=True, poke_interval=1) >> GatedOperator(
        task_id="micro_batch", pipeline=loop, folder=f"{HOME}/landing"
    )
