"""Travels to Spark: nothing of the orchestrator is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.files import ReadResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read(spark: SparkSession, arguments: Mapping[str, Any]) -> ReadResult:
    """The numbers of a range, as the column ``id``."""
    found = numbers(arguments)
    return ReadResult(
        frame=spark.range(found.start, found.stop), columns=("id",), ended=lambda: {"end": found.stop - 1}
    )


def numbers(arguments: Mapping[str, Any]) -> range:
    """Those up to the end of the range; of one without an end up to where the counter is now."""
    start, end = arguments["start"], arguments.get("end")
    if end is None:
        most = arguments["max_rows"]
        end = max(start, int(Path(arguments["path"]).read_text()))
        end = end if most is None else min(end, start + most)
    return range(start + 1, end + 1)
