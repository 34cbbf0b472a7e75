"""Changes of a PostgreSQL table by a replication slot: a run waits until there are some, and makes one micro-batch of
them, a row for each change.

The Airflow connection ``orders_db`` leads to the database; docs/postgres-slot.md has what it needs. Folders are below
``MICROBATCH_HOME``.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_microbatch import FileSink, Pipeline, SlotSource
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.sensors.new_data import NewDataSensor

HOME = os.environ.get("MICROBATCH_HOME", "/opt/microbatch")

orders = Pipeline(
    "orders_slot",
    checkpoint=f"{HOME}/checkpoints/orders_slot",
    sources={
        "orders": SlotSource(
            "orders_slot",
            "orders",
            "orders_db",
            publication="orders_changes",
            schema="id long, customer string, amount double, ts timestamp",
            snapshot=f"{HOME}/snapshots",
        )
    },
    sink=FileSink(f"{HOME}/lake/orders_slot"),
)

with DAG(
    "orders_slot",
    schedule="@continuous",
    start_date=datetime(2026, 1, 1),
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=5)},
    tags=["microbatch"],
    doc_md=__doc__,
):
    NewDataSensor(task_id="new_data", pipeline=orders, deferrable=True, poke_interval=5) >> MicroBatchOperator(
        task_id="micro_batch", pipeline=orders, conn_id="spark_default"
    )
