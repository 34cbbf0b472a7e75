"""Reads one range of a Python data source's stream by its own partitions. Runs where Spark runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.files import ReadResult
from airflow_provider_microbatch.runtime.stream_readers import data_source, open_reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read(spark: SparkSession, arguments: Mapping[str, Any]) -> ReadResult:
    """Read one range.

    :param arguments: ``name``, ``source`` (``module:Class``), ``options``, ``schema`` (as DDL, or None for the data
        source's own), ``start`` and ``end``.
    """
    from pyspark.sql.types import StructType

    from airflow_provider_microbatch.runtime.ranges import frame_of

    asked = arguments["schema"] or data_source(arguments).schema()
    schema: Any = StructType.fromDDL(asked) if isinstance(asked, str) else asked
    if arguments["start"] == arguments["end"]:
        frame = spark.createDataFrame([], schema)
    else:
        frame = frame_of(spark, f"{__name__}:pieces_of", f"{__name__}:rows_of", arguments=arguments, schema=schema)
    return ReadResult(frame=frame, columns=tuple(schema.fieldNames()))


def pieces_of(arguments: Mapping[str, Any], schema: Any) -> Sequence[Any]:
    """The partitions of the range, as the user's reader makes them."""
    return open_reader(arguments, schema).pieces(arguments["start"], arguments["end"])


def rows_of(arguments: Mapping[str, Any], piece: Any, schema: Any) -> Iterator[Any]:
    """The rows of one partition. Runs on an executor, with its own reader."""
    return open_reader(arguments, schema).rows(piece)
