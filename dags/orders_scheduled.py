"""A micro-batch in each period: every ten minutes the orders that have landed since, and a skip when none have.

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
    "orders_scheduled",
    checkpoint=f"{HOME}/checkpoints/orders_scheduled",
    sources={
        "orders": FileSource(
            f"{HOME}/landing/orders",
            format="json",
            schema="id long, customer string, amount double, ts timestamp",
        )
    },
    transform="jobs/orders.py:transform",
    sink=FileSink(f"{HOME}/lake/orders_scheduled", partition_by=["day"]),
)

with DAG(
    "orders_scheduled",
    schedule="*/10 * * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=30)},
    tags=["microbatch"],
    doc_md=__doc__,
):
    MicroBatchOperator(task_id="micro_batch", pipeline=orders, conn_id="spark_default")
