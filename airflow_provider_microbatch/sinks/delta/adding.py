"""Files of a stage as the log adds them: where they lie, their partition, and what is known of their rows."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltalake.transaction import AddAction

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
