"""Reads exactly the planned files and snapshots of an Iceberg table. Runs where Spark runs: Spark Connect's API
only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.files import ReadResult
from airflow_provider_microbatch.runtime.quoting import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, arguments: Mapping[str, Any]) -> ReadResult:
    """Read one range.

    :param arguments: ``name``, ``address`` (of the table's metadata file), ``columns`` (for each column its name in
        that file and its name in the range), ``files`` of ``snapshot``, ``runs`` of snapshots (the id before the first,
        None if there is none, and the id of the last), and ``told`` (handed back unchanged).
    :return: the rows.
    :raises ValueError: if Spark lacks Iceberg.
    """
    from pyspark.sql.functions import col

    pairs: list[tuple[str, str]] = [(name, then) for name, then in arguments["columns"]]
    # A snapshot that is read as of its time has the column names of that time.
    as_then = [(then, then) for _, then in pairs]
    frames = []
    if arguments["files"]:
        whole = _load(spark, arguments, {"versionAsOf": str(arguments["snapshot"])})
        frames.append(_named(whole.where(col("_file").isin(arguments["files"])), as_then))
    for before, last in arguments["runs"]:
        if before is None:
            frames.append(_named(_load(spark, arguments, {"versionAsOf": str(last)}), as_then))
            continue
        options = {"start-snapshot-id": str(before), "end-snapshot-id": str(last)}
        frames.append(_named(_load(spark, arguments, options), pairs))
    if not frames:
        frames.append(_named(_load(spark, arguments, {}).where("1 = 0"), pairs))
    found = reduce(lambda one, other: one.unionByName(other), frames)
    return ReadResult(frame=found, told=arguments["told"])


def _load(spark: SparkSession, arguments: Mapping[str, Any], options: Mapping[str, str]) -> DataFrame:
    try:
        frame = spark.read.format("iceberg").options(**options).load(arguments["address"])
        frame.schema  # noqa: B018 - Spark Connect loads the table only here
    except Exception as error:
        if "DATA_SOURCE_NOT_FOUND" in str(error) or "iceberg.DefaultSource" in str(error):
            raise ValueError(
                f"source {arguments['name']!r}: Spark lacks Iceberg, org.apache.iceberg:iceberg-spark-runtime of Spark "
                f"{spark.version}. A spark-submit is given it by the source; a Spark Connect server has to be started "
                "with it."
            ) from error
        raise
    return frame


def _named(frame: DataFrame, pairs: Sequence[tuple[str, str]]) -> DataFrame:
    """The frame with the column names of the range."""
    from pyspark.sql.functions import col

    return frame.select(*(col(quoted(name)).alias(then) for name, then in pairs))
