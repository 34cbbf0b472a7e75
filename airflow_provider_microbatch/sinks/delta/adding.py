"""Files of a stage as the log adds them: where they lie, their partition, and what is known of their rows."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import Manifest
from airflow_provider_microbatch.sinks.file.posix import sync

if TYPE_CHECKING:
    from deltalake.transaction import AddAction

_PLAIN = re.compile(r"[A-Za-z0-9/_.=-]+")
"""Paths of which every reader and writer has one spelling. delta-rs encodes an umlaut in the log; Spark's VACUUM lists
the file as it is called, finds no such name there, and removes it."""

_ESCAPED = re.compile("%([0-9A-Fa-f]{2})")
_NULL = "__HIVE_DEFAULT_PARTITION__"
_COLUMNS = 32
"""Of so many Delta's own writers keep bounds."""
_LONGEST = 100


def partition_values(file: str) -> dict[str, str | None]:
    """The partition of a file that Spark has written into ``column=value`` folders.

    :param file: its path below the stage.
    """
    pairs = (part.partition("=") for part in file.split("/")[:-1])
    return {_unescaped(name): None if value == _NULL else _unescaped(value) for name, _, value in pairs}


def in_place(folder: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Give files a plain path where Spark's has other signs. Idempotent.

    :param folder: where they lie.
    :return: for each file its path in the manifest, and the one below ``folder`` that it has now.
    :raises SinkError: if one is missing, or is not as long as it was: somebody else was there.
    """
    for number, (file, size) in enumerate(sorted(manifest.files.items())):
        now = file if _PLAIN.fullmatch(file) else f"part-{number:05}.parquet"
        path = folder / now
        if now != file and (folder / file).exists():
            (folder / file).rename(path)
        found = path.lstat().st_size if path.is_file() and not path.is_symlink() else None
        if found != size:
            what = "is gone" if found is None else f"has {found} bytes, not {size}"
            raise SinkError(
                f"{path} {what}: somebody removed or changed what batch {manifest.key} attempt {manifest.epoch} wrote "
                "(a VACUUM that keeps less than a day?). It was not published; run the batch again."
            )
        yield file, now
    # Also what an earlier try has renamed: the log must not outlive, in a power cut, a name that it has.
    sync(folder)


def add_of(root: Path, path: str, values: Mapping[str, str | None]) -> AddAction | None:
    """How the log adds a file; None for one without a row.

    :param root: the table's folder.
    :param path: below it.
    :param values: its partition.
    """
    from deltalake.transaction import AddAction
    from pyarrow import parquet

    file = root / path
    found = file.stat()
    metadata = parquet.read_metadata(file)
    if metadata.num_rows == 0:
        return None
    return AddAction(
        path=path,
        size=found.st_size,
        partition_values=dict(values),
        modification_time=found.st_mtime_ns // 1_000_000,
        data_change=True,
        stats=json.dumps(_stats(metadata)),
    )


def _stats(metadata: Any) -> dict[str, Any]:
    """Of a Parquet footer: rows, and bounds, if each column has some that are the same to every reader. delta-rs
    takes a column without bounds, beside others that have some, for one of nulls, and leaves the file out wherever a
    reader filters by that column."""
    rows = {"numRecords": metadata.num_rows}
    nulls, low, high = dict[str, int](), dict[str, Any](), dict[str, Any]()
    if metadata.num_columns > _COLUMNS:
        return rows
    # parquet-mr has no bounds where a value is NaN, which is the largest to Delta; others pass over it.
    with_floats = str(metadata.created_by).startswith("parquet-mr")
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        parts = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        if "." in name or any(part is None or not part.has_null_count for part in parts):
            return rows
        nulls[name] = sum(part.null_count for part in parts)
        bounds = [part for part in parts if part.has_min_max]
        full = [group for group in range(len(parts)) if parts[group].null_count < metadata.row_group(group).num_rows]
        if not full:
            continue
        if not bounds or len(bounds) < len(full):
            return rows
        least, most = (_value(bound, with_floats=with_floats) for bound in _ends(bounds))
        if least is None or most is None:
            return rows
        low[name], high[name] = least, most
    return {**rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _ends(bounds: Sequence[Any]) -> tuple[Any, Any]:
    return min(part.min for part in bounds), max(part.max for part in bounds)


def _value(bound: Any, *, with_floats: bool) -> Any:
    # A time depends on how its file keeps it, a decimal on how JSON is read.
    if isinstance(bound, str):
        return bound if len(bound) <= _LONGEST else None
    if isinstance(bound, dt.date) and not isinstance(bound, dt.datetime):
        return bound.isoformat()
    if isinstance(bound, float):
        return bound if with_floats and math.isfinite(bound) else None
    return bound if type(bound) in (int, bool) else None


def _unescaped(text: str) -> str:
    """As Hive, and Spark, escape signs in the name of a folder."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)
