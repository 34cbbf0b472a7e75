"""The steps of a micro-batch as tasks: plan, submit, an audit that can refuse the batch, commit.

The audit reads the stage before any reader of the table can. When the audit refuses, nothing is published and the batch
stays planned: mend the fault, then clear ``submit``, or let the next run take the batch up.

Folders are below the environment variable ``MICROBATCH_HOME``.
"""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_microbatch import FileSink, FileSource, Pipeline
from airflow_provider_microbatch.operators.steps import micro_batch_steps

HOME = os.environ.get("MICROBATCH_HOME", "/opt/microbatch")

orders = Pipeline(
    "orders_steps",
    checkpoint=f"{HOME}/checkpoints/orders_steps",
    sources={
        "orders": FileSource(
            f"{HOME}/landing/orders_steps",
            format="json",
            schema="id long, customer string, amount double, ts timestamp",
        )
    },
    transform="jobs/orders.py:transform",
    sink=FileSink(f"{HOME}/lake/orders_steps", format="parquet"),
)


@task
def no_negative_amounts(staged: dict[str, Any]) -> int:
    """Refuse a batch in which an order has a negative amount, unless the file ``accept_negative_amounts`` exists."""
    from pathlib import Path

    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    # Like Spark's readers, pyarrow passes over the folder _manifest.
    table = ds.dataset(staged["stage"], format=staged["format"]).to_table(columns=["id", "amount"])
    wrong = table.filter(pc.less(table["amount"], 0))
    if wrong.num_rows and not Path(HOME, "accept_negative_amounts").exists():
        raise ValueError(f"batch {staged['key']} is refused: orders {wrong['id'].to_pylist()} have negative amounts")
    return int(table.num_rows)


with DAG(
    "orders_steps",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["microbatch"],
    doc_md=__doc__,
):
    micro_batch_steps(orders, audit=no_negative_amounts, conn_id="spark_default")
