"""The reader of the counter. It travels to Spark, where nothing of the orchestrator is installed."""

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
    """The numbers of a range. A range without an end goes up to where the counter is now, and holds at most
    ``max_rows`` numbers."""
    start, end = arguments["start"], arguments.get("end")
    if end is None:
        most = arguments["max_rows"]
        end = max(start, int(Path(arguments["path"]).read_text()))
        end = end if most is None else min(end, start + most)
    return range(start + 1, end + 1)
