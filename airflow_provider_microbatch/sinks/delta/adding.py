"""Files of a stage as the log adds them: where they lie, their partition, and what is known of their rows."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.checkpoint.key import BatchKey

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


def add_of(root: Path, path: str, values: Mapping[str, str | None], key: BatchKey | None) -> AddAction | None:
    """How the log adds a file; None for one without a row.

    :param root: the table's folder.
    :param path: below it.
    :param values: its partition.
    :param key: the batch of all its rows, if that is one.
    """
    from deltalake.transaction import AddAction
    from pyarrow import parquet

    file = root / path
    found = file.stat()
    metadata = parquet.read_metadata(file)
    if metadata.num_rows == 0:
        return None
    stats = _stats(metadata)
    if key is not None:
        for name, value in (("lane", key.lane), ("batch_id", key.id)):
            stats["minValues"][name] = stats["maxValues"][name] = value
            stats["nullCount"][name] = 0
    return AddAction(
        path=path,
        size=found.st_size,
        partition_values=dict(values),
        modification_time=found.st_mtime_ns // 1_000_000,
        data_change=True,
        stats=json.dumps(stats),
    )


def _stats(metadata: Any) -> dict[str, Any]:
    """Of a Parquet footer: rows, and bounds of columns whose bounds are the same to every reader."""
    nulls, low, high = dict[str, int](), dict[str, Any](), dict[str, Any]()
    for index in range(min(metadata.num_columns, _COLUMNS)):
        name = metadata.schema.column(index).path
        parts = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        if "." in name or any(part is None or not part.has_null_count for part in parts):
            continue
        nulls[name] = sum(part.null_count for part in parts)
        bounds = [part for part in parts if part.has_min_max]
        full = [group for group in range(len(parts)) if parts[group].null_count < metadata.row_group(group).num_rows]
        if not bounds or len(bounds) < len(full):
            continue
        least, most = _value(min(part.min for part in bounds)), _value(max(part.max for part in bounds))
        if least is not None and most is not None:
            low[name], high[name] = least, most
    return {"numRecords": metadata.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _value(bound: Any) -> Any:
    # Of a float NaN is left out, which is the largest to Delta; a time depends on how its file keeps it.
    if isinstance(bound, str):
        return bound if len(bound) <= _LONGEST else None
    if isinstance(bound, dt.date) and not isinstance(bound, dt.datetime):
        return bound.isoformat()
    return bound if type(bound) is int else None


def _unescaped(text: str) -> str:
    """As Hive, and Spark, escape signs in the name of a folder."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)
