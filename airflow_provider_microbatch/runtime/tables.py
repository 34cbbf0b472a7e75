"""Writes a stage table: files of the declared schema, or of the query's schema, which is reported then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime import report
from airflow_provider_microbatch.runtime import write as files
from airflow_provider_microbatch.runtime.failure import BatchFailure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write(frame: DataFrame, arguments: Mapping[str, Any]) -> DataFrame | list[str]:
    """Write the rows of a batch as a stage table.

    :param frame: the frame that the transform returned.
    :param arguments: those of :func:`airflow_provider_microbatch.runtime.write.write`, and ``table`` (its name),
        ``schema`` (DDL, or None) and ``columns_of_result`` (whether the table is made of the result's columns alone).
    :return: the listing of the stage's files.
    :raises BatchFailure: if the rows do not fit the declared schema.
    """
    if arguments["schema"] is not None:
        frame = _conformed(frame, arguments["schema"], arguments["table"])
    listing = files.write(frame, arguments)
    # Write the schema before the manifest: a complete stage must have its schema.
    report.write_schema(frame.sparkSession, arguments["path"], frame.schema)
    return listing


def _conformed(frame: DataFrame, schema: str, table: str) -> DataFrame:
    declared = frame.sparkSession.createDataFrame([], schema).schema
    known = {name.casefold() for name in declared.fieldNames()}
    extra = [column for column in frame.columns if column.casefold() not in known]
    if extra:
        raise BatchFailure(
            "result",
            f"table {table} has the columns {', '.join(declared.fieldNames())}; the transform's result has "
            f"{', '.join(extra)} too. Drop it in the transform, or add it to the sink's schema",
        )
    # Spark's own rules: by name, in the declared order, widened where that is lossless, else an error.
    return frame.to(declared)
