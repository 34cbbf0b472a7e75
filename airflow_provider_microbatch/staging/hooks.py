"""Job status hooks, where documentation of earlier versions named them; see
:mod:`airflow_provider_microbatch.job_status`."""

from __future__ import annotations

from airflow_provider_microbatch.job_status import (
    CANCELED,
    CREATED,
    FAILED,
    FINISHED,
    TERMINAL,
    JobContext,
    JobStatusHook,
)

__all__ = ["CANCELED", "CREATED", "FAILED", "FINISHED", "TERMINAL", "JobContext", "JobStatusHook"]
