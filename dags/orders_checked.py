"""Orders that are checked: negative orders, and rows that do not parse, go to dead letters, together with their batch.

Folders are below the environment variable ``MICROBATCH_HOME``.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_microbatch import FileSink, FileSource, Pipeline
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator

HOME = os.environ.get("MICROBATCH_HOME", "/opt/microbatch")

orders = Pipeline(
    "orders_checked",
    checkpoint=f"{HOME}/checkpoints/orders_checked",
    sources={
        "orders": FileSource(
            f"{HOME}/landing/orders",
            format="json",
            schema="id long, customer string, amount double, ts timestamp",
        )
    },
    transform="jobs/orders.py:transform",
    sink=FileSink(f"{HOME}/lake/orders_checked", partition_by=("day",)),
    expect={"amount >= 0": "dead_letter", "id IS NOT NULL": "fail"},
    dead_letters=FileSink(f"{HOME}/dead_letters/orders_checked"),
    max_dead_letters=0.05,
)

with DAG(
    "orders_checked",
    schedule="*/10 * * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=30)},
    tags=["microbatch"],
    doc_md=__doc__,
):
    MicroBatchOperator(task_id="micro_batch", pipeline=orders, conn_id="spark_default")
