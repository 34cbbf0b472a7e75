"""The reader of the queue. It travels to Spark, where nothing of the orchestrator is installed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.files import ReadResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read(spark: SparkSession, arguments: Mapping[str, Any]) -> ReadResult:
    """The rows of a range."""
    rows, end = entries(arguments)
    frame = spark.createDataFrame([(row["id"],) for row in rows], "id long")
    return ReadResult(frame=frame, columns=("id",), ended=lambda: {"end": end})


def entries(arguments: Mapping[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """The rows of a range, and the number of the last line that was read.

    A range without an end has the rows of all lines that the file has now.
    """
    lines = Path(arguments["path"]).read_text().splitlines()
    end = arguments.get("end")
    found = lines[arguments["start"] : end]
    return [row for line in found for row in json.loads(line)], arguments["start"] + len(found)
