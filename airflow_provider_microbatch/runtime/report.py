"""What a job leaves beside its data: ``_manifest`` when the stage is complete, ``_error`` when it is not.

Both are folders of text files with one JSON object a line, written by Spark, so that they lie where the data lies and
never on the driver's own disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.layout import ERROR, MANIFEST, SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def write_manifest(spark: SparkSession, folder: str, result: Mapping[str, Any], listing: DataFrame | None) -> None:
    """Write the manifest: ``{"result": …}`` and the lines of ``listing``. Its one file appears at once, by a rename, so
    that a manifest is never read in half."""
    lines = _line(spark, {"result": result})
    _write(lines if listing is None else lines.union(listing), f"{folder}/{MANIFEST}", mode="error")


def write_error(spark: SparkSession, folder: str, report: Mapping[str, str]) -> None:
    """Write why the job failed, for the orchestrator and for a person."""
    _write(_line(spark, report), f"{folder}/{ERROR}", mode="overwrite")


def write_schema(spark: SparkSession, folder: str, schema: Mapping[str, Any]) -> None:
    """Write the columns of a stage table.

    :param schema: ``StructType.jsonValue()``.
    """
    _write(_line(spark, {"schema": schema}), f"{folder}/{SCHEMA}", mode="error")


def _line(spark: SparkSession, value: Mapping[str, Any]) -> DataFrame:
    from pyspark.sql import functions as F

    text = json.dumps(value, ensure_ascii=False)
    return spark.range(1).select(F.lit(text).alias("value"))


def _write(lines: DataFrame, path: str, *, mode: str) -> None:
    lines.coalesce(1).write.mode(mode).option("compression", "none").text(path)
