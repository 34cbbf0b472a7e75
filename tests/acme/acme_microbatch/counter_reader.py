"""Travels to Spark: nothing of the orchestrator is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.files import ReadResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read(spark: SparkSession, arguments: Mapping[str, Any]) -> ReadResult:
    """The numbers of a range, as the column ``id``."""
    return ReadResult(frame=spark.range(arguments["start"] + 1, arguments["end"] + 1), columns=("id",))
