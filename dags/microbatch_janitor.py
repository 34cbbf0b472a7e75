"""The janitor cleans up after killed attempts, every five minutes.

It works on the checkpoints of the other example DAGs, below the folder that the environment variable
``MICROBATCH_HOME`` names; and on the checkpoint in a bucket, if ``MICROBATCH_LAKE`` names the bucket.
"""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_microbatch.operators.janitor import MicroBatchJanitorOperator

HOME = os.environ.get("MICROBATCH_HOME", "/opt/microbatch")
LAKE = os.environ.get("MICROBATCH_LAKE")

with DAG(
    "microbatch_janitor",
    schedule="*/5 * * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["microbatch"],
    doc_md=__doc__,
):
    MicroBatchJanitorOperator(
        task_id="janitor",
        checkpoints=[
            *(
                f"{HOME}/checkpoints/{name}"
                for name in (
                    "orders",
                    "orders_scheduled",
                    "orders_steps",
                    "orders_table",
                    "orders_delta",
                    "orders_checked",
                    "orders_iceberg",
                    "orders_kafka",
                    "orders_once",
                    "orders_polled",
                    "orders_slot",
                    "shop_job/orders",
                    "shop_job/people",
                )
            ),
            *([f"{LAKE}/checkpoints/orders"] if LAKE else []),
        ],
    )
