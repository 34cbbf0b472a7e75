"""DAGs to which the things happen that docs/events.md lists: one pipeline each, below ``MICROBATCH_HOME``."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_provider_microbatch import FileSink, FileSource, Pipeline
from airflow_provider_microbatch.sensors.new_data import NewDataSensor
from tests.support.gated_engine import GatedOperator
from tests.support.hooks import Diary

HOME = Path(os.environ["MICROBATCH_HOME"])


def events_of(name: str, *, dag: dict[str, Any] | None = None, sensor: bool = False, **task: Any) -> None:
    """A DAG whose one task is ``micro_batch``, behind ``new_data`` if there is a sensor."""
    folder = HOME / name
    pipeline = Pipeline(
        name,
        checkpoint=str(folder / "checkpoint"),
        sources={"orders": FileSource(str(folder / "landing"), format="json", schema="id long")},
        sink=FileSink(str(folder / "lake"), format="json"),
        hooks=(Diary(str(folder / "diary")),),
    )
    with DAG(name, schedule=None, max_active_runs=1, **(dag or {})):
        batch = GatedOperator(
            task_id="micro_batch",
            pipeline=pipeline,
            folder=str(folder),
            **{"retries": 0, "retry_delay": timedelta(0), **task},
        )
        if sensor:
            (
                NewDataSensor(
                    task_id="new_data", pipeline=pipeline, deferrable=True, poke_interval=1, end_from_trigger=False
                )
                >> batch
            )


events_of("success")
events_of("deferred", sensor=True)
events_of("failed_once", fails=(1,), retries=1)
events_of("failed", fails=(1,))
events_of("killed", held=(1,))
events_of("killed_retried", held=(1,), retries=1)
events_of("orphaned", held=(1,), retries=1)
events_of("marked_failed", held=(1,))
events_of("marked_success", held=(1,))
events_of("cleared", held=(1,))
events_of("run_failed", held=(1,))
events_of("timed_out", held=(1,), execution_timeout=timedelta(seconds=10))
events_of("run_timed_out", held=(1,), dag={"dagrun_timeout": timedelta(seconds=40)})
events_of("deleted", held=(1,))
events_of("terminated", held=(1,))
events_of("scheduler_killed", held=(1,))
events_of("second_scheduler", held=(1,))
# While it is away each try fails, and the first of them is the one with an attempt.
events_of("api_server_killed", held=(1,), retries=9, retry_delay=timedelta(seconds=3))
