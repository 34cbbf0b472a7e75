"""A job of two pipelines: one cleans orders into a table, the other brings users and guests together in another table.

Each pipeline has a checkpoint, tasks and failures of its own. Folders are below the environment variable
``MICROBATCH_HOME``.
"""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_microbatch import FileSink, FileSource
from airflow_provider_microbatch.graph import JobGraph
from airflow_provider_microbatch.operators.job import micro_batch_job

HOME = os.environ.get("MICROBATCH_HOME", "/opt/microbatch")
ORDERS = "id long, customer string, amount double, ts timestamp"
PEOPLE = "id long, customer string"

with JobGraph("shop", checkpoint=f"{HOME}/checkpoints/shop_job") as shop:
    users = shop.source("users", FileSource(f"{HOME}/landing/users", format="json", schema=PEOPLE))
    guests = shop.source("guests", FileSource(f"{HOME}/landing/guests", format="json", schema=PEOPLE))
    orders = shop.source("orders", FileSource(f"{HOME}/landing/shop_orders", format="json", schema=ORDERS))
    shop.sink("people", shop.union(users, guests), FileSink(f"{HOME}/lake/people"))
    shop.sink("orders", shop.transform(orders, "jobs/orders.py:transform"), FileSink(f"{HOME}/lake/shop_orders"))

with DAG(
    "shop_job",
    schedule="@continuous",
    start_date=datetime(2026, 1, 1),
    max_active_runs=1,
    tags=["microbatch"],
    doc_md=__doc__,
):
    micro_batch_job(shop, conn_id="spark_default", deferrable=True, poke_interval=1)
