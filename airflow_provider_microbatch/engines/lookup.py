"""Find an engine by the name in a handle, to poll and cancel with what the handle alone says."""

from __future__ import annotations

from airflow_provider_microbatch.execution.engine import Engine


def find_engine(name: str) -> Engine | None:
    """The engine, made without a connection; None for a name that is not known here."""
    if name != "spark-submit":
        return None
    from airflow_provider_microbatch.engines.spark_submit import SparkSubmitEngine

    return SparkSubmitEngine()
