"""Stages of a Delta table as the runtime leaves them, made by hand: Parquet files, and the columns of the frame."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.sinks import OpenSink
from tests.sinks.stages import BATCH, folder_of
from tests.support import shadow

LONGS = {"id": "long", "epoch": "long"}
_ESCAPED = "\"#%'*/:=?\\{[]^"
_ARROW = {
    "long": pa.int64(),
    "integer": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "string": pa.string(),
    "date": pa.date32(),
}


def write_delta_stage(
    sink: OpenSink, epoch: int, *, batch: BatchIdentity = BATCH, rows: int = 3, files: int = 1, complete: bool = True
) -> Path:
    """A stage whose rows say which attempt wrote them."""
    parts = [[{"id": row, "epoch": epoch} for row in range(rows)] for _ in range(files)]
    return write_rows(sink, epoch, parts, LONGS, batch=batch, complete=complete)


def write_changes_stage(
    sink: OpenSink, epoch: int, *, batch: BatchIdentity = BATCH, rows: int = 3, files: int = 1, complete: bool = True
) -> Path:
    """The same as changes, none of which deletes."""
    parts = [[{"id": row, "epoch": epoch, "_deleted": False} for row in range(rows)] for _ in range(files)]
    return write_rows(sink, epoch, parts, {**LONGS, "_deleted": "boolean"}, batch=batch, complete=complete)


def write_rows(
    sink: OpenSink,
    epoch: int,
    parts: Sequence[Sequence[Mapping[str, Any]]],
    columns: Mapping[str, str],
    *,
    batch: BatchIdentity = BATCH,
    partition_by: str | None = None,
    complete: bool = True,
) -> Path:
    """A stage of these rows, a file of each part, and of each value of the column to partition by.

    :param columns: types by name, as Spark calls them.
    """
    folder = folder_of(sink, epoch, batch)
    sink.begin(batch, epoch)
    folder.mkdir(parents=True)
    listed = {}
    ours = sink.stage(batch, epoch).arguments["constants"]
    types = {**columns, "lane": "string", "batch_id": "long"}
    for number, part in enumerate(parts):
        for value, found in groupby(part, key=lambda row: row[partition_by] if partition_by else None):
            name = f"part-{number:05}-{batch.digest}-{epoch}.parquet"
            path = folder / (f"{partition_by}={_hive(value)}" if partition_by else "") / name
            path.parent.mkdir(exist_ok=True)
            write_file(path, [{**row, **ours} for row in found], {k: v for k, v in types.items() if k != partition_by})
            listed[path.relative_to(folder).as_posix()] = path.stat().st_size
    write_schema(folder, types)
    if complete:
        result = {"batchId": batch.key.id, "epoch": epoch, "numOutputRows": sum(map(len, parts))}
        result |= {"identity": batch.to_dict()} if batch.checkpoint else {}
        lines = [{"result": result}, *({"file": name, "bytes": size} for name, size in listed.items())]
        write_lines(folder / "_manifest", lines)
    shadow.send(sink.stage(batch, epoch).report, *shadow.files_below(folder))
    return folder


def write_file(path: Path, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    """A Parquet file of these columns."""
    schema = pa.schema([(name, _ARROW[kind]) for name, kind in columns.items()])
    parquet.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=schema), path)


def write_marked_part(
    path: Path, rows: Sequence[Mapping[str, Any]], names: Sequence[str], constants: Mapping[str, Any]
) -> None:
    """A file of rows, each of which says whose it is; folders that somebody removed are made again, as Spark does.

    :param names: columns of whole numbers, and ``_deleted``.
    """
    kinds = {"lane": "string", "_deleted": "boolean"}
    columns = {name: kinds.get(name, "long") for name in (*names, *constants)}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, [{**row, **constants} for row in rows], columns)
    write_schema(path.parent, columns)


def write_schema(folder: Path, columns: Mapping[str, str]) -> None:
    """The columns, as the runtime tells them."""
    fields = [{"name": name, "type": kind, "nullable": False, "metadata": {}} for name, kind in columns.items()]
    write_lines(folder / "_schema", [{"schema": {"type": "struct", "fields": fields}}])


def write_lines(folder: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """JSON lines, as Spark leaves them."""
    folder.mkdir(exist_ok=True)
    (folder / "part-00000.txt").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _hive(value: str | None) -> str:
    """As Spark calls the folder of a partition."""
    if value is None:
        return "__HIVE_DEFAULT_PARTITION__"
    return "".join(f"%{ord(sign):02X}" if sign in _ESCAPED else sign for sign in value)
