"""The streaming loop without a disk: orders land in a bucket, in which the table and the checkpoint lie too.

The bucket and its Airflow connection (type ``aws``) are named by ``MICROBATCH_LAKE``, such as ``s3://lake@company-lake``.
Workers share no folder; Spark reads and writes by Hadoop's ``s3a``, with the connection's credentials.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_microbatch import FileSink, FileSource, Pipeline
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.sensors.new_data import NewDataSensor

LAKE = os.environ.get("MICROBATCH_LAKE", "s3://lake@company-lake")
# None: the connector that belongs to the installed Spark travels with each batch, by --packages.
CONNECTOR: list[str] | None = [] if os.environ.get("MICROBATCH_SPARK_HAS_S3A") else None

orders = Pipeline(
    "orders_s3",
    checkpoint=f"{LAKE}/checkpoints/orders",
    sources={
        "orders": FileSource(
            f"{LAKE}/landing/orders",
            format="json",
            schema="id long, customer string, amount double, ts timestamp",
            packages=CONNECTOR,
        )
    },
    transform="jobs/orders.py:transform",
    sink=FileSink(f"{LAKE}/lake/orders", packages=CONNECTOR),
)

with DAG(
    "orders_s3",
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
