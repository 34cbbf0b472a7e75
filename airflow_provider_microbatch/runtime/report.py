"""The report that a job leaves beside its data: ``_manifest`` when the stage is complete, ``_error`` when it is not.

Both are folders of text files with one JSON object a line. They lie beside the data and never on the driver's own disk:
Spark writes them, or, where this process sees the stage that Spark has made, or reaches its bucket, this process does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.hadoop_files import files_in_bucket
from airflow_provider_microbatch.runtime.layout import ERROR, MANIFEST, SCHEMA
from airflow_provider_microbatch.runtime.session import folder_beside_driver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

NONE: Mapping[str, str] = MappingProxyType({})
"""No options, for a folder that Spark reaches without any."""
_ONLY = "part-00000.txt"
"""The file of a report that this process writes; those that Spark writes begin alike."""


def write_manifest(
    spark: SparkSession,
    folder: str,
    result: Mapping[str, Any],
    listing: DataFrame | list[str] | None,
    *,
    options: Mapping[str, str] = NONE,
) -> None:
    """Write the manifest: ``{"result": …}`` and the lines of ``listing``. The manifest's only file appears at once, by
    a rename or as an object, so that a reader never reads half a manifest.

    :param options: the options with which Spark reaches the folder.
    :raises Exception: if the stage has a manifest already: of the kind that whoever writes it has for that.
    """
    path = f"{folder}/{MANIFEST}"
    if listing is None or isinstance(listing, list):
        if _wrote(spark, folder, MANIFEST, [_text({"result": result}), *(listing or ())], options=options):
            return
        listing = spark.createDataFrame([(line,) for line in listing], "value string") if listing else None
    lines = _line(spark, {"result": result})
    _write(lines if listing is None else lines.union(listing), path, mode="error", options=options)


def write_error(
    spark: SparkSession, folder: str, report: Mapping[str, str], *, options: Mapping[str, str] = NONE
) -> None:
    """Write why the job failed, for the orchestrator and for a person.

    :param options: as for :func:`write_manifest`.
    """
    _write(_line(spark, report), f"{folder}/{ERROR}", mode="overwrite", options=options)


def write_schema(spark: SparkSession, folder: str, schema: StructType, *, options: Mapping[str, str] = NONE) -> None:
    """Write the columns of a stage table: in Spark's JSON form, and as names and types for a statement.

    :param options: as for :func:`write_manifest`.
    """
    columns = [[field.name, field.dataType.simpleString()] for field in schema.fields]
    told = {"schema": schema.jsonValue(), "columns": columns}
    if not _wrote(spark, folder, SCHEMA, [_text(told)], options=options):
        _write(_line(spark, told), f"{folder}/{SCHEMA}", mode="error", options=options)


def _wrote(spark: SparkSession, folder: str, name: str, lines: list[str], *, options: Mapping[str, str]) -> bool:
    """Whether this process itself has written a new folder with the lines, beside the data, without a job of Spark."""
    stage = folder_beside_driver(spark, folder)
    if stage is not None:
        _write_here(stage / name, lines)
        return True
    bucket = files_in_bucket(spark, f"{folder}/{name}", options=options)
    if bucket is not None:
        bucket.write_new(_ONLY, lines)
    return bucket is not None


def _write_here(folder: Path, lines: list[str]) -> None:
    folder.mkdir()
    hidden = folder / f".{_ONLY}"
    with hidden.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
    hidden.rename(folder / _ONLY)


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)


def _line(spark: SparkSession, value: Mapping[str, Any]) -> DataFrame:
    from pyspark.sql import functions as F

    return spark.range(1).select(F.lit(_text(value)).alias("value"))


def _write(lines: DataFrame, path: str, *, mode: str, options: Mapping[str, str]) -> None:
    lines.coalesce(1).write.mode(mode).options(**options).option("compression", "none").text(path)
