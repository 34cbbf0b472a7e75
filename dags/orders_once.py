"""Orders that are sent more than once: each order is in the table once. The orders seen are kept from batch to batch.

Folders are below ``MICROBATCH_HOME``. The checkpoint must be in a file system that Spark has too.
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
    "orders_once",
    checkpoint=f"{HOME}/checkpoints/orders_once",
    sources={
        "orders": FileSource(
            f"{HOME}/landing/orders_once",
            format="json",
            schema="id long, customer string, amount double, ts timestamp",
        )
    },
    transform="jobs/orders_once.py:transform",
    stateful=True,
    conf={"spark.sql.shuffle.partitions": "4"},  # also partitions of the state, which keeps this number
    no_data_batches=False,  # dropping old state can wait for the next order
    sink=FileSink(f"{HOME}/lake/orders_once"),
)

with DAG(
    "orders_once",
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
