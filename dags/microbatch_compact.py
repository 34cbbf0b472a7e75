"""Small files of the other example DAGs' tables become few, once a day.

It works on the checkpoints below the folder that the environment variable ``MICROBATCH_HOME`` names, beside the DAGs
that make batches there.
"""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_microbatch.operators.compact import CompactOperator

HOME = os.environ.get("MICROBATCH_HOME", "/opt/microbatch")

with DAG(
    "microbatch_compact",
    schedule="30 3 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["microbatch"],
    doc_md=__doc__,
):
    for name in ("orders", "orders_delta"):
        CompactOperator(task_id=f"compact_{name}", checkpoints=[f"{HOME}/checkpoints/{name}"])
