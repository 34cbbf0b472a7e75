"""Writes a stage of files, and lists the written files. Spark's own file system does both, wherever the stage lies;
where this process sees the stage as Spark's driver does, or reaches its bucket, the files are listed without a Spark
job."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime import report, transforms
from airflow_provider_microbatch.runtime.access import options_of
from airflow_provider_microbatch.runtime.counting import wrote
from airflow_provider_microbatch.runtime.failure import BatchFailure, cause_of
from airflow_provider_microbatch.runtime.hadoop_files import files_in_bucket
from airflow_provider_microbatch.runtime.parquet_settings import kept_whole
from airflow_provider_microbatch.runtime.session import folder_beside_driver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Spark's options for times as text, to the microsecond. By its own formats the text ends at the millisecond."""
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


def write(frame: DataFrame, arguments: Mapping[str, Any]) -> DataFrame | list[str]:
    """Write the rows of a batch as files.

    :param frame: the frame that the transform returned.
    :param arguments: ``path`` (must not exist), ``format``, ``partition_by``, ``options``, and the arguments of
        :func:`~airflow_provider_microbatch.runtime.access.options_of`.
    :return: JSON lines, ``{"file": path below the stage, "bytes": n}`` for each data file: a list, or one column
        ``value``.
    :raises BatchFailure: if a column to partition by is missing, or has values that Spark takes for no value.
    """
    path, partition_by = arguments["path"], list(arguments.get("partition_by", ()))
    present = {column.casefold() for column in frame.columns}
    missing = [column for column in partition_by if column.casefold() not in present]
    if missing:
        raise BatchFailure(
            "result",
            f"partition_by names {', '.join(missing)}, which the transform's result does not have; its columns are: "
            f"{', '.join(frame.columns)}",
        )
    writer = frame.write.format(arguments["format"]).mode("error")
    # The batch's own manifest marks a stage as complete; an empty marker file would be published with the data.
    writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    writer = writer.options(**arguments.get("options", {}), **options_of(arguments))
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    try:
        writer.save(path)
    except Exception as error:
        cause = cause_of(error) or ""
        if partition_by and "FileAlreadyExistsException" in cause and f"={_NO_VALUE}/" in cause:
            raise BatchFailure(
                "result",
                f"{cause}: Spark writes rows without a value in a column of partition_by ({', '.join(partition_by)}), "
                f"and rows with the text {_NO_VALUE!r}, into one folder, and the batch has both. Have the transform "
                f"make that text null (nullif), or give both another value (coalesce)",
            ) from error
        raise
    wrote(frame)
    folder = folder_beside_driver(frame.sparkSession, path)
    if folder is not None:
        return [_entry(*file) for file in _walk(folder)]
    bucket = files_in_bucket(frame.sparkSession, path, options=options_of(arguments))
    if bucket is not None:
        return sorted(_entry(file, size) for file, size in bucket.below() if all(map(_is_data, file.split("/"))))
    return _listing(frame, arguments)


def times_of(spark: SparkSession) -> dict[str, str]:
    """The options of times as text, for what this session's Spark reads again: its parser of before Spark 3 would take
    all digits of a second's fraction for milliseconds."""
    policy = str(spark.conf.get("spark.sql.legacy.timeParserPolicy"))
    return {} if policy.upper() == "LEGACY" else TIMES


def write_marked(frame: DataFrame, arguments: Mapping[str, Any]) -> DataFrame | list[str]:
    """Write the rows of a batch as files in which each row names its batch, and report the columns. Used for a table
    whose readers know files by a log, and in which other programs may merge files.

    :param frame: the frame that the transform returned.
    :param arguments: those of :func:`write`, and ``constants``: further columns, by name, with one value for all rows;
        ``groups``, in place of ``partition_by``: folder → transform and column
        (:mod:`airflow_provider_microbatch.runtime.transforms`), whose values are equal for all rows of a file. The
        files keep these columns.
    :return: the listing of the stage's files.
    :raises BatchFailure: if a column to group by is missing, or has another type.
    """
    from pyspark.sql import functions as F

    constants = {name: F.lit(value) for name, value in arguments["constants"].items()}
    for name, value in arguments["constants"].items():
        constants[name] = constants[name].cast("bigint" if isinstance(value, int) else "string")
    marked = frame.withColumns(constants)
    groups = {name: transforms.column(marked, *how) for name, how in arguments.get("groups", {}).items()}
    with kept_whole(marked.sparkSession):
        if groups:
            listing = write(marked.withColumns(groups), {**arguments, "partition_by": list(groups)})
        else:
            listing = write(marked, arguments)
    # Write the columns before the manifest: a complete stage must have its columns.
    report.write_schema(marked.sparkSession, arguments["path"], marked.schema, options=options_of(arguments))
    return listing


def _walk(stage: Path) -> Iterator[tuple[str, int]]:
    for parent, folders, names in os.walk(stage):
        folders[:] = sorted(name for name in folders if _is_data(name))
        for path in (Path(parent, name) for name in sorted(names) if _is_data(name)):
            yield path.relative_to(stage).as_posix(), path.stat().st_size


def _entry(file: str, size: int) -> str:
    return json.dumps({"file": file, "bytes": size}, ensure_ascii=False)


def _is_data(name: str) -> bool:
    # Spark's own rule: partition folders may begin with an underscore.
    return not name.startswith(".") and (not name.startswith("_") or "=" in name)


def _listing(frame: DataFrame, arguments: Mapping[str, Any]) -> DataFrame:
    from pyspark.sql import functions as F

    path, reader = arguments["path"], frame.sparkSession.read.format("binaryFile").options(**options_of(arguments))
    files = reader.option("recursiveFileLookup", "true").load(path)
    # Spark returns absolute paths in its own spelling of the URL; the last components of the stage (lane, batch,
    # attempt) are spelled alike everywhere and cannot come again below it.
    stage = "/" + "/".join(path.rstrip("/").split("/")[-3:]) + "/"
    relative = F.substring_index(F.col("path"), stage, -1)
    return files.select(F.to_json(F.struct(relative.alias("file"), F.col("length").alias("bytes"))).alias("value"))
