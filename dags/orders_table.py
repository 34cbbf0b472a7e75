"""A table that is replaced as a whole: every night orders that have landed since, as ``CREATE OR REPLACE TABLE AS``.

Readers find last night's table until tonight's is complete. Folders are below the environment variable
``MICROBATCH_HOME``.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_microbatch import FileSource, PathCatalog, Pipeline, TableSink
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator

HOME = os.environ.get("MICROBATCH_HOME", "/opt/microbatch")

orders = Pipeline(
    "orders_table",
    checkpoint=f"{HOME}/checkpoints/orders_table",
    sources={
        "orders": FileSource(
            f"{HOME}/landing/orders",
            format="json",
            schema="id long, customer string, amount double, ts timestamp",
        )
    },
    transform="jobs/orders.py:transform",
    sink=TableSink(PathCatalog(f"{HOME}/lake"), "sales.orders_of_the_day", mode="create_or_replace"),
)

with DAG(
    "orders_table",
    schedule="0 2 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=30)},
    tags=["microbatch"],
    doc_md=__doc__,
):
    MicroBatchOperator(task_id="micro_batch", pipeline=orders, conn_id="spark_default")
