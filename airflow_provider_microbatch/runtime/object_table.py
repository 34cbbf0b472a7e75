"""Reads a table of files in a bucket with Spark: the files that its manifests name, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MANIFESTS = "_symlink_format_manifest"
"""A folder of the table. Delta gives such manifests the same name, so that people recognise the folder."""

FORMATS = ("parquet", "json", "csv", "orc")
_NOTHING = "nothing."
_FOLDERS = r"/lane=([^/]+)/batch_id=(\d+)/[^/]+/[^/]+$"
_NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


def read_table(
    spark: SparkSession,
    path: str,
    *,
    format: str | None = None,
    schema: str | None = None,
    options: Mapping[str, str] = _NO_OPTIONS,
) -> DataFrame:
    """The rows of a ``FileSink`` in a bucket, as they are published now, with the columns ``lane`` and ``batch_id``.

    The frame has all rows of a batch or none. Rows that are published later are not in the frame; rows that a replay
    replaces during the read stay readable for the janitor's grace period.

    :param spark: a session whose ``s3a`` reaches the bucket.
    :param path: ``s3a://bucket/folder``, or any scheme that the session's Hadoop knows.
    :param format: format of the files; None takes it from their names.
    :param schema: as DDL; needed while the table has no rows, and for formats that hold no schema. None: Spark infers
        it.
    :param options: options of Spark's reader; also settings such as ``fs.s3a.bucket.lake.access.key``.
    :raises ValueError: if nothing is published and no schema is given; or if the format is not one that a FileSink
        writes.
    """
    from pyspark.sql import functions as F

    top = path.rstrip("/")
    lines = spark.read.options(**options).option("recursiveFileLookup", "true").text(f"{top}/{MANIFESTS}")
    files = sorted(_as_asked(row[0], top) for row in lines.collect() if not is_nothing(row[0]))
    if not files:
        if schema is None:
            raise ValueError(f"nothing is published in {path}: give its columns, as schema='id long, …'.")
        return spark.createDataFrame([], f"{schema}, lane string, batch_id long")
    chosen = format or format_of(files[0])
    reader = spark.read.format(chosen).options(**options)
    if schema is not None:
        reader = reader.schema(schema)
    # Without the option, the folders' values would be columns, of types that Spark guesses from them.
    rows = reader.option("recursiveFileLookup", "true").load(files)
    where = F.col("_metadata.file_path")
    return rows.select(
        "*",
        F.regexp_extract(where, _FOLDERS, 1).alias("lane"),
        F.regexp_extract(where, _FOLDERS, 2).cast("bigint").alias("batch_id"),
    )


def format_of(file: str) -> str:
    """The format of a file that Spark has written for a FileSink, by the file's name.

    :raises ValueError: if the name does not tell the format.
    """
    parts = file.rpartition("/")[2].split(".")
    found = next((part for part in reversed(parts) if part in FORMATS), None)
    if found is None:
        raise ValueError(f"the name of {file} tells no format: say which, one of {', '.join(FORMATS)}.")
    return found


def is_nothing(address: str) -> bool:
    """Whether an address in a manifest is that of an empty placeholder file: a manifest must name at least one file."""
    return "/_nothing/" in address or address.rpartition("/")[2].startswith(_NOTHING)


def _as_asked(address: str, top: str) -> str:
    """The address with the scheme that the user gave for the table: manifests have ``s3://``, which Hadoop calls
    ``s3a://``."""
    return f"{top.partition('://')[0]}://{address.partition('://')[2]}"
