"""Travels to Spark: nothing of the orchestrator is there."""

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
    """The rows up to the end of the range, of one without an end of all lines that are there, and how many lines those
    are from the first on."""
    lines = Path(arguments["path"]).read_text().splitlines()
    end = arguments.get("end")
    found = lines[arguments["start"] : end]
    return [row for line in found for row in json.loads(line)], arguments["start"] + len(found)
