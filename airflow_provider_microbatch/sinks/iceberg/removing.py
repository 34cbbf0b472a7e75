"""Finds the files of a branch that have rows of a batch, and the rows of other batches to be kept from them, if the
batch is taken out.

The columns ``lane`` and ``batch_id`` tell the rows apart, since a compaction merges files of several batches. A file
that also has rows of other batches is rewritten without the batch's rows; rows that were deleted stay deleted.
"""

from __future__ import annotations

import contextlib
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.checkpoint.key import BatchKey, is_whole
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.file.arguments import RESERVED_COLUMNS
from airflow_provider_microbatch.sinks.iceberg.protocol import plain_path
from airflow_provider_microbatch.sinks.placed.places import own_of

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table


@dataclass
class Removal:
    """The changes that take a batch out of the branch.

    :param rows: how many of the batch's rows are in now.
    :param removed: files to remove.
    :param added: rewritten files that keep the rows of other batches.
    """

    table: Table
    rows: int = 0
    removed: list[DataFile] = field(default_factory=list)
    added: list[DataFile] = field(default_factory=list)

    def undo(self) -> None:
        """Delete the rewritten files, which no snapshot names."""
        for one in self.added:
            with contextlib.suppress(OSError):
                self.table.io.delete(one.file_path)


def removal_of(table: Table, snapshot_id: int | None, key: BatchKey, *, where: str) -> Removal:
    """The changes that take a batch out of the table as it is in that snapshot.

    :raises SinkError: if a file cannot be read.
    """
    found = Removal(table)
    names = {one.name for one in table.schema().fields}
    if snapshot_id is None or not set(RESERVED_COLUMNS) <= names:
        return found
    try:
        for task in table.scan(row_filter=_is_of(key), snapshot_id=snapshot_id).plan_files():
            _take_out(found, task, key)
    except (ValueError, NotImplementedError) as error:
        found.undo()
        raise SinkError(
            f"{where} has files with rows of batch {key} that cannot be read here: {error}. Compact the table "
            "(CALL system.rewrite_data_files), and run the batch again. Nothing was changed."
        ) from error
    except BaseException:
        found.undo()
        raise
    return found


def batches_with_rows(
    table: Table, snapshot_id: int | None, keys: Collection[BatchKey], *, where: str
) -> set[BatchKey]:
    """Those of the batches of which the table has rows in that snapshot. A file of one batch is not read.

    :raises SinkError: if a file cannot be read.
    """
    found = set[BatchKey]()
    names = {one.name for one in table.schema().fields}
    if snapshot_id is None or not set(RESERVED_COLUMNS) <= names:
        return found
    with telling_unread(where):
        for lane in sorted({key.lane for key in keys}):
            ids = {key.id for key in keys if key.lane == lane}
            rows = _is_between(lane, min(ids), max(ids))
            for task in table.scan(row_filter=rows, snapshot_id=snapshot_id).plan_files():
                ids -= _ids_in(table, task, lane, rows)
                if not ids:
                    break
            found |= {key for key in keys if key.lane == lane and key.id not in ids}
    return found


def attempts_shown(table: Table, snapshot_id: int | None, root: Path) -> Mapping[BatchKey, Collection[int]]:
    """The numbers of the manifests of the attempts of which the table has files in that snapshot, by batch. A file of
    which others have deleted rows counts as nobody's: a replay leaves it where it is if none of its rows is left.

    :raises SinkError: if the files cannot be listed.
    """
    found = defaultdict[BatchKey, set[int]](set)
    with telling_unread(f"the Iceberg table at {root}"):
        for task in () if snapshot_id is None else table.scan(snapshot_id=snapshot_id).plan_files():
            own = own_of(plain_path(task.file.file_path).removeprefix(f"{root}/"))
            if own is not None and not task.delete_files:
                found[own[0]].add(own[1])
    return found


@contextlib.contextmanager
def telling_unread(where: str) -> Iterator[None]:
    """Raise what pyiceberg says of a file that it cannot read as an error of the sink."""
    try:
        yield
    except (ValueError, NotImplementedError) as error:
        raise SinkError(
            f"{where} has files that cannot be read here: {error}. They decide which batches its branch has. Compact "
            "the table (CALL system.rewrite_data_files). Nothing was changed."
        ) from error


def _ids_in(table: Table, task: FileScanTask, lane: str, rows: BooleanExpression) -> set[int]:
    """Ids of batches of the lane of which a file has rows."""
    id, _ = bounds(table, task.file, RESERVED_COLUMNS[1])
    if not task.delete_files and is_whole(id) and id >= 0 and _is_wholly(table, task.file, BatchKey(lane, id)):
        return {id}
    parts = read(table, task, rows, RESERVED_COLUMNS)
    return {id for part in parts for id in part.column(RESERVED_COLUMNS[1]).unique().to_pylist()}


def bounds(table: Table, file: DataFile, name: str) -> tuple[Any, Any]:
    """The least and the greatest value of a column in a file, by its statistics; None: not known."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import PrimitiveType

    column = table.schema().find_field(name)
    kind = column.field_type
    if not isinstance(kind, PrimitiveType):
        return None, None
    least, most = ((side or {}).get(column.field_id) for side in (file.lower_bounds, file.upper_bounds))
    return None if least is None else from_bytes(kind, least), None if most is None else from_bytes(kind, most)


def _take_out(found: Removal, task: FileScanTask, key: BatchKey) -> None:
    table = found.table
    if not task.delete_files and _is_wholly(table, task.file, key):
        found.rows += task.file.record_count
        found.removed.append(task.file)
        return
    rows = sum(part.num_rows for part in read(table, task, _is_of(key), RESERVED_COLUMNS))
    if rows == 0:
        return
    found.rows += rows
    found.removed.append(task.file)
    found.added += _written(table, read(table, task, _is_of_others(key)))


def _is_of(key: BatchKey) -> BooleanExpression:
    from pyiceberg.expressions import And, EqualTo, Reference
    from pyiceberg.expressions.literals import literal

    lane, number = RESERVED_COLUMNS
    return And(
        EqualTo(term=Reference(lane), value=literal(key.lane)), EqualTo(term=Reference(number), value=literal(key.id))
    )


def _is_between(lane: str, first: int, last: int) -> BooleanExpression:
    from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, LessThanOrEqual, Reference
    from pyiceberg.expressions.literals import literal

    name, number = map(Reference, RESERVED_COLUMNS)
    ids = And(GreaterThanOrEqual(term=number, value=literal(first)), LessThanOrEqual(term=number, value=literal(last)))
    return And(EqualTo(term=name, value=literal(lane)), ids)


def _is_of_others(key: BatchKey) -> BooleanExpression:
    """Not just the negation: for a row that no batch brought, whose columns are null, neither expression is true."""
    from pyiceberg.expressions import IsNull, NotEqualTo, Or, Reference
    from pyiceberg.expressions.literals import literal

    lane, number = map(Reference, RESERVED_COLUMNS)
    return Or(
        Or(IsNull(term=lane), IsNull(term=number)),
        Or(NotEqualTo(term=lane, value=literal(key.lane)), NotEqualTo(term=number, value=literal(key.id))),
    )


def _is_wholly(table: Table, file: DataFile, key: BatchKey) -> bool:
    """Whether all rows of a file are the batch's, according to the file's statistics."""
    from pyiceberg.conversions import to_bytes
    from pyiceberg.types import PrimitiveType

    values: tuple[str | int, ...] = (key.lane, key.id)
    for name, value in zip(RESERVED_COLUMNS, values, strict=True):
        column = table.schema().find_field(name)
        if not isinstance(column.field_type, PrimitiveType):
            return False
        bound = to_bytes(column.field_type, value)
        nulls = (file.null_value_counts or {}).get(column.field_id)
        bounds = {(side or {}).get(column.field_id) for side in (file.lower_bounds, file.upper_bounds)}
        if bounds != {bound} or nulls != 0:
            return False
    return True


def read(
    table: Table, task: FileScanTask, rows: BooleanExpression, columns: tuple[str, ...] | None = None
) -> Iterator[Any]:
    """Those rows of a file, a piece at a time, without the ones that others have deleted."""
    from pyiceberg.io.pyarrow import ArrowScan

    schema = table.schema() if columns is None else table.schema().select(*columns)
    yield from ArrowScan(table.metadata, table.io, schema, rows).to_record_batches([task])


def _written(table: Table, rest: Iterator[Any]) -> Iterator[DataFile]:
    """Write files with these rows, as pyiceberg does when it deletes rows itself."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    parts = [part for part in rest if part.num_rows]
    if parts:
        yield from _dataframe_to_data_files(
            table.metadata, pa.Table.from_batches(parts), table.io, write_uuid=uuid.uuid4(), counter=count()
        )
