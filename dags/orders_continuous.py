"""The streaming loop: a run waits for order files and makes one micro-batch of them, then the next run begins.

Folders are below the environment variable ``MICROBATCH_HOME``.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_microbatch import FileSink, FileSource, Pipeline
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.sensors.new_data import NewDataSensor

HOME = os.environ.get("MICROBATCH_HOME", "/opt/microbatch")

orders = Pipeline(
    "orders",
    checkpoint=f"{HOME}/checkpoints/orders",
    sources={
        "orders": FileSource(
            f"{HOME}/landing/orders",
            format="json",
            schema="id long, customer string, amount double, ts timestamp",
            max_files=500,
        )
    },
    transform="jobs/orders.py:transform",
    sink=FileSink(f"{HOME}/lake/orders"),
)

with DAG(
    "orders_continuous",
    schedule="@continuous",
    start_date=datetime(2026, 1, 1),
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=5)},
    tags=["microbatch"],
    doc_md=__doc__,
):
    NewDataSensor(task_id="new_data", pipeline=orders, deferrable=True, poke_interval=1) >> MicroBatchOperator(
        task_id="micro_batch", pipeline=orders, conn_id="spark_default"
    )
