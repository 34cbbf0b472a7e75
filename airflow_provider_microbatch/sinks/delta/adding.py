"""Files of a stage as actions that add them to the log: their paths, partitions and row statistics."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.sinks.delta.home import Home

if TYPE_CHECKING:
    from deltalake.transaction import AddAction

_ESCAPED = re.compile("%([0-9A-Fa-f]{2})")
_NULL = "__HIVE_DEFAULT_PARTITION__"
_COLUMNS = 32
"""Delta's own writers keep bounds of this many columns."""
_LONGEST = 100


def partition_values(file: str) -> dict[str, str | None]:
    """The partition of a file that Spark has written into ``column=value`` folders.

    :param file: the file's path below the stage.
    """
    pairs = (part.partition("=") for part in file.split("/")[:-1])
    return {_unescaped(name): None if value == _NULL else _unescaped(value) for name, _, value in pairs}


def add_of(home: Home, path: str, values: Mapping[str, str | None], *, data_change: bool = True) -> AddAction | None:
    """The action that adds a file to the log; None for a file without rows.

    :param home: where the table lies.
    :param path: the file's path below the table's folder.
    :param values: the file's partition.
    :param data_change: False if its rows are in the table already: who follows the table does not read them again.
    """
    from deltalake.transaction import AddAction

    found = home.footer(path)
    if found.metadata.num_rows == 0:
        return None
    return AddAction(
        path=path,
        size=found.size,
        partition_values=dict(values),
        modification_time=found.modified_ms,
        data_change=data_change,
        stats=json.dumps(_stats(found.metadata)),
    )


def _stats(metadata: Any) -> dict[str, Any]:
    """Statistics from a Parquet footer: the number of rows, and bounds if each column has bounds that mean the same to
    every reader. If only some columns have bounds, delta-rs takes a column without bounds to be all null, and skips the
    file whenever a reader filters by that column."""
    rows = {"numRecords": metadata.num_rows}
    nulls, low, high = dict[str, int](), dict[str, Any](), dict[str, Any]()
    if metadata.num_columns > _COLUMNS:
        return rows
    # parquet-mr writes no bounds if a value is NaN, which Delta sorts as the largest; other writers ignore NaN.
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
        try:
            least, most = (_value(bound, with_floats=with_floats) for bound in _ends(bounds))
        except (OverflowError, ValueError):  # a time for which Python has no value: a year of five digits, or year 0
            return rows
        if least is None or most is None:
            return rows
        low[name], high[name] = least, most
    return {**rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _ends(bounds: Sequence[Any]) -> tuple[Any, Any]:
    return min(part.min for part in bounds), max(part.max for part in bounds)


def _value(bound: Any, *, with_floats: bool) -> Any:
    # No bounds of times and decimals: a time's text depends on how its file stores it, a decimal's on how JSON is read.
    if isinstance(bound, str):
        return bound if len(bound) <= _LONGEST else None
    if isinstance(bound, dt.date) and not isinstance(bound, dt.datetime):
        return bound.isoformat()
    if isinstance(bound, float):
        return bound if with_floats and math.isfinite(bound) else None
    return bound if type(bound) in (int, bool) else None


def _unescaped(text: str) -> str:
    """Undo the escapes that Hive and Spark use in names of folders."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)
