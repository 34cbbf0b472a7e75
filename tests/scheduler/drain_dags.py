"""The DAG of the drain test, copied into the DAGs folder; on an engine without a JVM.

The file ``drain_fails`` in ``MICROBATCH_HOME`` names the batch that fails.
"""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import DAG

from airflow_provider_microbatch import FileSink, FileSource, Pipeline
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.operators.drain import DrainSlotOperator, drain
from airflow_provider_microbatch.runtime.job import Job
from tests.support.inline_engine import InlineEngine

HOME = Path(os.environ.get("MICROBATCH_HOME", "/opt/microbatch"))


def _obey(job: Job) -> None:
    told = HOME / "drain_fails"
    if told.exists() and told.read_text() == str(job.batch_id):
        raise EngineError("told to fail")


class _InlineSlot(DrainSlotOperator):
    def engine(self) -> InlineEngine:
        return InlineEngine(before_stage=_obey)


with DAG("drain", schedule=None, max_active_runs=1):
    drain(
        Pipeline(
            "drain",
            checkpoint=str(HOME / "checkpoints" / "drain"),
            sources={"orders": FileSource(str(HOME / "landing" / "drain"), schema="id long", max_files=1)},
            sink=FileSink(str(HOME / "lake" / "drain"), format="json"),
        ),
        slots=4,
        operator=_InlineSlot,
    )
