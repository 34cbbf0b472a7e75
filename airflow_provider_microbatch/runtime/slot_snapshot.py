"""Reads the rows that a table had when its slot was made, out of the files that planning has copied them to.

Each line is one row, as JSON: the texts of its columns, as PostgreSQL writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.files import ReadResult
from airflow_provider_microbatch.runtime.pg_texts import reader_of
from airflow_provider_microbatch.runtime.reading import own_token, reading
from airflow_provider_microbatch.runtime.slot import columns_of, ddl_of, in_batches
from airflow_provider_microbatch.runtime.slot_rows import Form, Row, SlotError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read(spark: SparkSession, arguments: Mapping[str, Any]) -> ReadResult:
    """Read a snapshot, a file for each task.

    :param arguments: ``name`` of the source; ``columns``, pairs of a name and a type of Spark's; ``copied``, the names
        of what is in a line; ``folder``; ``files``, pairs of a name and the number of its rows; and ``lsn``, at which
        the slot begins.
    """
    files = arguments["files"]
    if not files:
        return ReadResult(frame=spark.createDataFrame([], ddl_of(arguments)))
    frame = spark.range(0, len(files), 1, len(files)).mapInArrow(
        partial(_batches, dict(arguments), own_token()), ddl_of(arguments)
    )  # fmt: skip
    return ReadResult(frame=frame)


def rows_of(arguments: Mapping[str, Any], number: int) -> Iterator[Row]:
    """Yield the rows of a file.

    :raises SlotError: if it is not what it was when it was written, or has a value that the schema cannot hold.
    """
    name, rows = arguments["files"][number]
    path, found = Path(arguments["folder"]) / name, 0
    copied = {column: place for place, column in enumerate(arguments["copied"])}
    # By name: the schema may have another order today. What the table did not have is null, as it is in a change.
    form = Form(
        [(column, copied.get(column), reader_of(type)) for column, type in arguments["columns"]],
        key=[],
        error=lambda text: SlotError(f"source {arguments['name']!r}: line {found + 1:,} of {path} {text}."),
    )
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            # Before the first change that can be committed behind it, as ``_number`` begins at 0.
            yield (*form.values(json.loads(line)), "snapshot", arguments["lsn"], -1, None)
            found += 1
    if found != rows:
        raise SlotError(f"source {arguments['name']!r}: {path} has {found:,} rows, and had {rows:,}.")


def _batches(arguments: Mapping[str, Any], token: str, batches: Iterator[Any]) -> Iterator[Any]:
    """Runs on an executor: the rows of the files whose numbers Spark hands over."""
    with reading(arguments["name"], token):
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from in_batches(rows_of(arguments, number), columns_of(arguments))
