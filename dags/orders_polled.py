"""Orders of an HTTP API: a run waits until the API has new orders, and makes one micro-batch of them.

The source is a class of your own, in ``jobs/orders_api.py``. The triggerer does not have your modules, so workers poll.

The environment variable ``ORDERS_API`` has the address of the API; folders are below ``MICROBATCH_HOME``.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import DAG
from jobs.orders_api import OrdersApi

from airflow_provider_microbatch import FileSink, Pipeline
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.sensors.new_data import NewDataSensor

HOME = os.environ.get("MICROBATCH_HOME", "/opt/microbatch")

orders = Pipeline(
    "orders_polled",
    checkpoint=f"{HOME}/checkpoints/orders_polled",
    sources={"orders": OrdersApi(os.environ.get("ORDERS_API", "http://127.0.0.1:8090"), max_rows=10_000)},
    transform="jobs/orders.py:transform",
    sink=FileSink(f"{HOME}/lake/orders_polled"),
)

with DAG(
    "orders_polled",
    schedule="@continuous",
    start_date=datetime(2026, 1, 1),
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=5)},
    tags=["microbatch"],
    doc_md=__doc__,
):
    NewDataSensor(task_id="new_data", pipeline=orders, poke_interval=5) >> MicroBatchOperator(
        task_id="micro_batch", pipeline=orders, conn_id="spark_default"
    )
