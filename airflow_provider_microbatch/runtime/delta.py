"""Reads exactly the planned files and changes of a Delta table. Runs where Spark runs: Spark Connect's API only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.files import NO_LISTING_JOB, ReadResult, literally
from airflow_provider_microbatch.runtime.quoting import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

_FILE = "regexp_replace(_metadata.file_path, '^file:/+', 'file:///')"
"""The file that a row comes from: Spark writes its address with one slash in some places and with three in others."""


def read(spark: SparkSession, arguments: Mapping[str, Any]) -> ReadResult:
    """Read one range.

    :param arguments: ``name``, ``path`` (the table's folder), ``schema`` (as JSON), ``partition_by``, ``plain``
        (Parquet files: ``path``, ``url`` and values of their ``partition``), ``versions`` (with the ``urls`` of files
        to read from the table as of each version), ``changes`` (first and last version of each part of the change
        feed), ``told`` (handed back unchanged), and for a change feed ``as_inserts``: version and time (milliseconds
        since the epoch) for the rows of files.
    :return: the rows.
    :raises ValueError: if Spark lacks Delta where it is needed, or a file is not in its version.
    """
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(arguments["schema"])
    frames = [_plain(spark, schema, arguments)] if arguments.get("plain") else []
    frames += [_version(spark, arguments, schema, one) for one in arguments.get("versions", ())]
    if not frames:
        frames = [spark.createDataFrame([], schema)]
    found = reduce(lambda one, other: one.unionByName(other), frames)
    if "as_inserts" in arguments:
        found = reduce(
            lambda one, other: one.unionByName(other),
            [
                _as_inserts(found, *arguments["as_inserts"]),
                *(_changes(spark, arguments, schema, first, last) for first, last in arguments["changes"]),
            ],
        )
    return ReadResult(frame=found, told=arguments["told"])


def _plain(spark: SparkSession, schema: StructType, arguments: Mapping[str, Any]) -> DataFrame:
    """Parquet files, each joined with the values of its partition, which the file itself does not hold."""
    from pyspark.sql.functions import broadcast, col, expr, lit, raise_error, when
    from pyspark.sql.types import BooleanType, StringType, StructField, StructType

    files, partition_by = arguments["plain"], arguments["partition_by"]
    own = StructType([column for column in schema.fields if column.name not in partition_by])
    # A threshold below the number of paths makes Spark start a job only to list files that are already known.
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", NO_LISTING_JOB)
    # Without the option, Spark would look for partition columns in the names of folders.
    reader = _complete(spark.read.format("parquet").schema(own)).option("recursiveFileLookup", "true")
    frame = reader.load(["file://" + literally(file["path"]) for file in files])
    if not partition_by:
        return frame
    values = [StructField(f"value {at}", StringType()) for at in range(len(partition_by))]
    known = spark.createDataFrame(
        [(file["url"], True, *file["partition"]) for file in files],
        StructType([StructField("of file", StringType()), StructField("is known", BooleanType()), *values]),
    )
    of_file = frame.select("*", expr(_FILE).alias("in file"))
    joined = of_file.join(broadcast(known), col("in file") == col("of file"), "left")
    unknown = raise_error(lit(f"source {arguments['name']!r}: Spark names a file otherwise than its plan"))
    return joined.select(
        *(
            when(col("is known"), col(f"value {partition_by.index(column.name)}").cast(column.dataType))
            .otherwise(unknown.cast(column.dataType))
            .alias(column.name)
            if column.name in partition_by
            else col(quoted(column.name))
            for column in schema.fields
        )
    )


def _version(
    spark: SparkSession, arguments: Mapping[str, Any], schema: StructType, part: Mapping[str, Any]
) -> DataFrame:
    """The files of a part of the plan, read from the table as of a version by Delta's reader."""
    from pyspark.sql.functions import expr

    frame = _delta(spark, arguments, {"versionAsOf": str(part["version"])})
    there = {"file:///" + url.removeprefix("file:").lstrip("/") for url in frame.inputFiles()}
    missing = sorted(set(part["urls"]) - there)
    if missing:
        raise ValueError(
            f"source {arguments['name']!r}: {missing[0]} is not among the files of version {part['version']}, as Spark "
            "names them, and its rows would be left out."
        )
    found = frame.where(expr(_FILE).isin(part["urls"]))
    return _ordered(found, schema.fieldNames())


def _changes(spark: SparkSession, arguments: Mapping[str, Any], schema: StructType, first: int, last: int) -> DataFrame:
    options = {"readChangeFeed": "true", "startingVersion": str(first), "endingVersion": str(last)}
    names = [*schema.fieldNames(), "_change_type", "_commit_version", "_commit_timestamp"]
    return _ordered(_delta(spark, arguments, options), names)


def _as_inserts(frame: DataFrame, version: int, time_ms: int) -> DataFrame:
    from pyspark.sql.functions import expr

    return frame.withColumns(
        {
            "_change_type": expr("'insert'"),
            "_commit_version": expr(f"{version}L"),
            "_commit_timestamp": expr(f"timestamp_millis({time_ms}L)"),
        }
    )


def _delta(spark: SparkSession, arguments: Mapping[str, Any], options: Mapping[str, str]) -> DataFrame:
    reader = _complete(spark.read.format("delta").options(**options))
    try:
        frame = reader.load("file://" + arguments["path"])
        frame.schema  # noqa: B018 - Spark Connect loads the table only here
    except Exception as error:
        if "DATA_SOURCE_NOT_FOUND" in str(error) or "delta.DefaultSource" in str(error):
            raise ValueError(
                f"source {arguments['name']!r}: Spark lacks Delta, io.delta:delta-spark of Spark {spark.version}. A "
                "spark-submit is given it by the source; a Spark Connect server has to be started with it."
            ) from error
        raise
    return frame


def _complete(reader: DataFrameReader) -> DataFrameReader:
    """Make a file that is gone or torn fail the attempt: Spark must not skip a file silently, however the session is
    set."""
    return reader.option("ignoreMissingFiles", "false").option("ignoreCorruptFiles", "false")


def _ordered(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    return frame.select(*(quoted(name) for name in names))
