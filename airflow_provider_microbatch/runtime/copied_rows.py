"""Copies the rows of a range, and has Spark stream the copy: for sources without a stream that reads exactly a planned
range.

The rows are read once an attempt. Whatever the source would answer a second time, output and state are made of the same
rows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_microbatch.runtime.files import ReadResult, literally
from airflow_provider_microbatch.runtime.parquet_settings import kept_whole
from airflow_provider_microbatch.runtime.streaming_job import Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STREAM = "airflow_provider_microbatch.runtime.files:stream"


def copied(found: ReadResult, *, name: str, folder: Path) -> Stream:
    """Copy the rows of a range to Parquet files, and return the stream of these files: the first entry of a log of
    Spark's file source, whatever the batch before had.

    :param found: the range, as its reader returned it.
    :param name: name of the source, for messages.
    :param folder: a folder of the attempt's own; must not exist yet. The driver and the executors share it.
    """
    with kept_whole(found.frame.sparkSession):
        found.frame.write.parquet(f"file://{folder}")
    files = sorted(folder.glob("part-*"))
    lines = [json.dumps({"path": file.as_uri(), "timestamp": 0, "batchId": 0}, separators=(",", ":")) for file in files]
    # After the write: only then is it known where a range without an end has ended.
    ended = {} if found.ended is None else found.ended()
    return Stream(
        reader=_STREAM,
        arguments={
            "name": name,
            "format": "parquet",
            "schema_json": found.frame.schema.json(),
            "options": {},
            "path": str(folder),
        },
        start=None,
        end='{"logOffset":0}' if files else None,
        log={"0": "\n".join(["v1", *lines])} if files else {},
        told={**found.told, **ended},
    )


def count_of_copy(spark: SparkSession, stream: Stream) -> int:
    """The number of copied rows, which the files know without being read."""
    return 0 if stream.end is None else spark.read.parquet("file://" + literally(stream.arguments["path"])).count()
