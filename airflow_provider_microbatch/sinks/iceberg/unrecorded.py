"""Counts rows of batches in the files of a branch, for who asks whether it has some of which there is no record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.key import BatchKey, is_name, is_whole
from airflow_provider_microbatch.sinks.file.arguments import RESERVED_COLUMNS
from airflow_provider_microbatch.sinks.iceberg.removing import read, telling_unread

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table


class RowsInFiles:
    """A file is read once, however often a commit is tried, or batches are asked for: nobody changes it."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, frozenset[str]], Counter[BatchKey]] = {}

    def count(self, table: Table, snapshot_id: int, lane: str, ids: range, *, untold: bool, where: str) -> int:
        """How many rows the table has in that snapshot of batches of the lane with these ids. By their statistics,
        other files are not read.

        :param untold: whether files count whose statistics do not tell of lanes.
        :raises SinkError: if a file that may have some cannot be read.
        """
        if not set(RESERVED_COLUMNS) <= {one.name for one in table.schema().fields}:
            return 0
        of_batches = _are_of(lane, ids)

        def rows(tasks: Iterable[FileScanTask]) -> int:
            told = (task for task in tasks if untold or _tells(table, task.file))
            by_batch = [(key, rows) for task in told for key, rows in self._rows(table, task).items()]
            return sum(rows for key, rows in by_batch if key.lane == lane and key.id in ids)

        with telling_unread(where):
            try:
                return rows(table.scan(row_filter=of_batches, snapshot_id=snapshot_id).plan_files())
            except (ValueError, NotImplementedError):
                # So pyiceberg refuses a table of which somebody deletes rows by their values. Without what he has
                # deleted, a file has more rows, and none that it does not show.
                if rows(_undeleted(table, snapshot_id, of_batches)):
                    raise
        return 0

    def _rows(self, table: Table, task: FileScanTask) -> Counter[BatchKey]:
        at = (task.file.file_path, frozenset(one.file_path for one in task.delete_files))
        if at not in self._read:
            self._read[at] = _by_batch(table, task)
        return self._read[at]


def _by_batch(table: Table, task: FileScanTask) -> Counter[BatchKey]:
    import pyarrow as pa
    from pyiceberg.expressions import NotNull, Reference

    found, (lane, number) = Counter[BatchKey](), RESERVED_COLUMNS
    for part in read(table, task, NotNull(term=Reference(lane)), RESERVED_COLUMNS):
        grouped = pa.Table.from_batches([part]).group_by(list(RESERVED_COLUMNS)).aggregate([([], "count_all")])
        for one in grouped.to_pylist():
            if is_name(one[lane]) and is_whole(one[number]) and one[number] >= 0:
                found[BatchKey(one[lane], one[number])] += one["count_all"]
    return found


def _are_of(lane: str, ids: range) -> BooleanExpression:
    from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, LessThan, Reference
    from pyiceberg.expressions.literals import literal

    name, number = map(Reference, RESERVED_COLUMNS)
    first, end = literal(ids.start), literal(ids.stop)
    among = And(GreaterThanOrEqual(term=number, value=first), LessThan(term=number, value=end))
    return And(EqualTo(term=name, value=literal(lane)), among)


def _tells(table: Table, file: DataFile) -> bool:
    """Whether the statistics of a file have bounds of its lanes."""
    return table.schema().find_field(RESERVED_COLUMNS[0]).field_id in (file.lower_bounds or {})


def _undeleted(table: Table, snapshot_id: int, rows: BooleanExpression) -> Iterator[FileScanTask]:
    """The data files that may have such rows, without what was deleted in them."""
    from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
    from pyiceberg.manifest import ManifestContent
    from pyiceberg.table import FileScanTask

    snapshot, may_have = table.metadata.snapshot_by_id(snapshot_id), _InclusiveMetricsEvaluator(table.schema(), rows)
    for manifest in () if snapshot is None else snapshot.manifests(table.io):
        if manifest.content == ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(table.io):
                if may_have.eval(entry.data_file):
                    yield FileScanTask(entry.data_file)
