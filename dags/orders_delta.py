"""Orders into a Delta table: every ten minutes the orders that have landed since are one commit of the table.

Folders are below the environment variable ``MICROBATCH_HOME``.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_microbatch import DeltaSink, FileSource, Pipeline
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator

HOME = os.environ.get("MICROBATCH_HOME", "/opt/microbatch")

orders = Pipeline(
    "orders_delta",
    checkpoint=f"{HOME}/checkpoints/orders_delta",
    sources={
        "orders": FileSource(
            f"{HOME}/landing/orders",
            format="json",
            schema="id long, customer string, amount double, ts timestamp",
        )
    },
    transform="jobs/orders.py:transform",
    sink=DeltaSink(f"{HOME}/lake/orders_delta", partition_by=["day"]),
)

with DAG(
    "orders_delta",
    schedule="*/10 * * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=30)},
    tags=["microbatch"],
    doc_md=__doc__,
):
    MicroBatchOperator(task_id="micro_batch", pipeline=orders, conn_id="spark_default")
