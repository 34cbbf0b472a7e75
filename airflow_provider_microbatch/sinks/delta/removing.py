"""Finds the files of a table that have rows of a batch, and the rows of other batches to be kept from them.

A file below the batch's own folder has no other rows. Any other file may have some of the batch's rows: OPTIMIZE merges
files of several batches, DELETE and UPDATE rewrite files. In such a file the columns ``lane`` and ``batch_id`` tell the
rows apart; a file that also has rows of other batches is rewritten without the batch's rows.
"""

from __future__ import annotations

import datetime as dt
import re
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.delta.adding import add_of
from airflow_provider_microbatch.sinks.delta.home import Home
from airflow_provider_microbatch.sinks.delta.log import OF_ANOTHER, Snapshot
from airflow_provider_microbatch.sinks.delta.present import bounds, has_none_of_ours
from airflow_provider_microbatch.sinks.delta.protocol import has_change_feed, of_another
from airflow_provider_microbatch.sinks.file.arguments import RESERVED_COLUMNS
from airflow_provider_microbatch.sinks.placed.arrow_types import plain
from airflow_provider_microbatch.sinks.placed.data_files import is_of, rows_by_batch
from airflow_provider_microbatch.sinks.placed.places import DATA, REST, folder_of_batch, shared_by
from airflow_provider_microbatch.sinks.placed.unrecorded import Asked

if TYPE_CHECKING:
    from deltalake.transaction import AddAction, RemoveAction

NAMEABLE = re.compile(r"[A-Za-z0-9/_.=% -]+")
"""Paths that delta-rs writes into the log unchanged. If a removal spelled a path differently, it would remove nothing,
and the batch's rows would be in the table twice."""
_TELLING = ("num_records", "null_count", "min", "max")
"""The figures of a file that tell whether it may have rows of a batch."""
_ROWS = 65_536


@dataclass
class Removal:
    """The changes that take a batch out of the table.

    :param rows: how many of the batch's rows are in now.
    :param actions: removals of files, and additions of rewritten files that keep the rows of other batches.
    :param home: where the table lies.
    :param left: paths of the rewritten files.
    """

    home: Home
    rows: int = 0
    actions: list[AddAction | RemoveAction] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def undo(self) -> None:
        """Delete the rewritten files, which no commit names."""
        for path in self.left:
            self.home.remove(path)


def removal_of(snapshot: Snapshot, home: Home, key: BatchKey) -> Removal:
    """The changes that take a batch out of the table as it is in that snapshot.

    :param home: where the table lies.
    :raises SinkError: if a file cannot be named, or may not be rewritten.
    """
    from deltalake.transaction import RemoveAction

    found, where = Removal(home), home.where
    try:
        for file in _candidates(snapshot, key):
            path = unquote(file["path"])
            check_no_clone(path, where=where)
            is_own = path.startswith(folder_of_batch(key))
            all_rows, rows = _count(home.source(path), key, all_of_it=is_own)
            if rows == 0:
                continue
            found.rows += rows
            check_name(path, where=where)
            values = partition_of(file["partition"])
            found.actions.append(RemoveAction(path, True, time.time_ns() // 1_000_000, file["size_bytes"], values))
            if rows < all_rows:
                if has_change_feed(snapshot):
                    raise SinkError(
                        f"{path} of the Delta table {where} has rows of batch {key} and of others, and readers follow "
                        "the table's changes (delta.enableChangeDataFeed): written anew without the batch, the others "
                        "would come to them again. Nothing was changed. Replace its rows by DELETE and INSERT."
                    )
                left = _write_rest(home, path, key)
                found.left.append(left)
                add = add_of(home, left, values)
                if add is not None:
                    found.actions.append(add)
    except BaseException:
        found.undo()
        raise
    return found


def files_with(snapshot: Snapshot, asked: Asked) -> Iterator[tuple[str, bool]]:
    """The files of the snapshot that were not gone through yet, by their paths as the log has them, each with whether
    it may have rows of a batch that is asked for, by the table's columns, its path and the log's statistics."""
    tells = set(RESERVED_COLUMNS) <= {one["name"] for one in snapshot.schema["fields"]}
    for file in snapshot.files("path", *_TELLING, but=asked.passed):
        yield file["path"], tells and _may_have_any(file, asked)


def _may_have_any(file: Mapping[str, Any], asked: Asked) -> bool:
    if asked.only is not None:
        return _may_have(file, unquote(file["path"]), asked.only)
    lanes, ids = (bounds(file, name) for name in RESERVED_COLUMNS)
    return not has_none_of_ours(file) and asked.may_be_in(lanes, ids)


def rows_in(home: Home, path: str) -> Counter[BatchKey]:
    """How many rows a file of the table has of each batch.

    :param path: as the log has it.
    :raises SinkError: if it is another table's.
    """
    from pyarrow import parquet

    check_no_clone(unquote(path), where=home.where)
    with parquet.ParquetFile(home.source(unquote(path))) as file:
        return _by_batch(file)


def _by_batch(file: Any) -> Counter[BatchKey]:
    found = Counter[BatchKey]()
    if not set(RESERVED_COLUMNS) <= set(file.schema_arrow.names):
        return found
    parts = file.iter_batches(batch_size=_ROWS, columns=list(RESERVED_COLUMNS))
    for table in _tables(parts, plain(file.schema_arrow)):
        found.update(rows_by_batch(table))
    return found


def files_of(snapshot: Snapshot, key: BatchKey) -> list[str]:
    """Paths below the table's folder of files that may have rows of the batch."""
    return sorted(unquote(file["path"]) for file in _candidates(snapshot, key))


def those_in(snapshot: Snapshot, home: Home, keys: Collection[BatchKey]) -> list[BatchKey]:
    """Those of the batches of which the snapshot has rows, in the order of ``keys``. A file is opened once at most.

    :raises SinkError: if a file that may have some is another table's.
    """
    found = set[BatchKey]()
    for file in snapshot.files("path", *_TELLING) if keys else ():
        path = unquote(file["path"])
        asked = [key for key in keys if key not in found and _may_have(file, path, key)]
        if asked:
            check_no_clone(path, where=home.where)
            found |= _those_with_rows(home.source(path), path, asked)
    return [key for key in keys if key in found]


def _those_with_rows(source: Any, path: str, keys: Sequence[BatchKey]) -> set[BatchKey]:
    from pyarrow import parquet

    with parquet.ParquetFile(source) as file:
        own = {key for key in keys if file.metadata.num_rows and path.startswith(folder_of_batch(key))}
        return own or _by_batch(file).keys() & keys


def _candidates(snapshot: Snapshot, key: BatchKey) -> Iterator[Mapping[str, Any]]:
    """Files that may have rows of the batch, according to the log's statistics."""
    for file in snapshot.files("path", "size_bytes", "partition", *_TELLING):
        if _may_have(file, unquote(file["path"]), key):
            yield {"partition": {}, **{name: value for name, value in file.items() if value is not None}}


def _may_have(file: Mapping[str, Any], path: str, key: BatchKey) -> bool:
    if _is_of_another(path, key) or has_none_of_ours(file):
        return False
    told = zip(RESERVED_COLUMNS, (key.lane, key.id), strict=True)
    return all(_may_be(file, name, value) for name, value in told)


def _is_of_another(path: str, key: BatchKey) -> bool:
    """Whether the file's path shows that all its rows are of another batch."""
    if path.startswith(REST):
        shared = shared_by(path)
        return shared is not None and not shared.may_have(key)
    return path.startswith(f"{DATA}/") and not path.startswith(folder_of_batch(key))


def _may_be(file: Mapping[str, Any], name: str, value: Any) -> bool:
    low, high = bounds(file, name)
    return low is None or high is None or low <= value <= high


def check_no_clone(path: str, *, where: str) -> None:
    """:raises SinkError: if the file is another table's."""
    if re.match(OF_ANOTHER, path):
        raise of_another(path, where=where)


def check_name(path: str, *, where: str) -> None:
    """:raises SinkError: if a removal would spell the file otherwise than the log."""
    if not NAMEABLE.fullmatch(path):
        raise SinkError(
            f"the Delta table {where} has a file {path!r} with rows that are to go, whose path delta-rs would spell "
            "otherwise than the log does. Nothing was changed. Replace those rows by DELETE and INSERT."
        )


def partition_of(values: Mapping[str, Any] | None) -> dict[str, str | None]:
    """The values of a file's partition, as the log has them."""
    return {name: _text(value) for name, value in (values or {}).items()}


def _text(value: Any) -> str | None:
    """The text that the log has for a partition's value."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dt.datetime):
        raise SinkError(f"a partition of the time {value} cannot be written: its text depends on who reads it.")
    return None if value is None else str(value)


def _count(source: Any, key: BatchKey, *, all_of_it: bool) -> tuple[int, int]:
    """The number of rows in a file, and how many of them are the batch's."""
    from pyarrow import parquet

    with parquet.ParquetFile(source) as file:
        rows = file.metadata.num_rows
        if all_of_it:
            return rows, rows
        if not set(RESERVED_COLUMNS) <= set(file.schema_arrow.names):
            return rows, 0
        parts = file.iter_batches(batch_size=_ROWS, columns=list(RESERVED_COLUMNS))
        schema = plain(file.schema_arrow)
        return rows, sum(is_of(table, key).true_count for table in _tables(parts, schema))


def _tables(parts: Iterator[Any], schema: Any) -> Iterator[Any]:
    """Parts of a file as tables, whose columns have the types of ``schema``."""
    import pyarrow as pa

    for part in parts:
        table = pa.Table.from_batches([part])
        yield table.cast(pa.schema([schema.field(name) for name in table.column_names]))


def _write_rest(home: Home, path: str, key: BatchKey) -> str:
    """Write a file with the rows of other batches. :return: its path below the table's folder."""
    import pyarrow.compute as pc
    from pyarrow import parquet

    folder = REST if shared_by(path) is None else f"{path.rpartition('/')[0]}/"
    left = f"{folder}{uuid.uuid4().hex}.parquet"
    # Spark stores times in 96 bits, which Arrow would read as nanoseconds: these end in the year 2262.
    reading = parquet.ParquetFile(home.source(path), coerce_int96_timestamp_unit="us")
    with home.writing(left) as target, reading as file:
        schema = plain(file.schema_arrow)
        with parquet.ParquetWriter(target, schema, compression="snappy") as writer:
            for table in _tables(file.iter_batches(batch_size=_ROWS), schema):
                writer.write_table(table.filter(pc.invert(is_of(table, key))))
    return left
