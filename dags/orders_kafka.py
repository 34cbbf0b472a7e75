"""Orders into a topic of Kafka: every ten minutes the orders that have landed since are one transaction.

Folders are below the environment variable ``MICROBATCH_HOME``. The topic ``orders`` exists; its cluster is named by the
Airflow connection ``kafka`` (docs/kafka-sink.md).
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_microbatch import FileSource, KafkaSink, Pipeline
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator

HOME = os.environ.get("MICROBATCH_HOME", "/opt/microbatch")

orders = Pipeline(
    "orders_kafka",
    checkpoint=f"{HOME}/checkpoints/orders_kafka",
    sources={
        "orders": FileSource(
            f"{HOME}/landing/orders_kafka",
            format="json",
            schema="id long, customer string, amount double, ts timestamp",
        )
    },
    transform="jobs/orders.py:transform",
    sink=KafkaSink("orders", conn_id="kafka", stages=f"{HOME}/stages", value="json"),
)

with DAG(
    "orders_kafka",
    schedule="*/10 * * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=30)},
    tags=["microbatch"],
    doc_md=__doc__,
):
    MicroBatchOperator(task_id="micro_batch", pipeline=orders, conn_id="spark_default")
