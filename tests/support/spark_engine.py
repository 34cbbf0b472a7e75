"""An engine for tests: runs a job by the runtime itself, in a session of this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.execution.engine import Code, Handle
from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.job import Job
from tests.support.inline_engine import InlineEngine


class SparkEngine(InlineEngine):
    """:param spark: the session."""

    def __init__(self, spark: Any) -> None:
        super().__init__()
        self._spark = spark

    def start(self, handle: Handle, job: Job, code: Code) -> None:
        self.jobs.append(job)
        try:
            run_job(self._spark, job)
        except BatchFailure:
            self._failures[handle["tag"]] = EngineError("the job failed")


def rows_of(spark: Any, table: Path, kind: str) -> list[dict[str, Any]]:
    """What Spark reads of a table that has rows."""
    return [row.asDict() for row in spark.read.format(kind).load(str(table)).collect()]
