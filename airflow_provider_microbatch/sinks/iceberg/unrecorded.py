"""Tells which rows a branch of an Iceberg table has of batches of which there is no record: somebody has copied them
there, or brought them back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import ExpectedBatch, Sink
from airflow_provider_microbatch.sinks.file.arguments import RESERVED_COLUMNS
from airflow_provider_microbatch.sinks.file.report import reporting
from airflow_provider_microbatch.sinks.iceberg.log import IcebergLog
from airflow_provider_microbatch.sinks.iceberg.look import Look
from airflow_provider_microbatch.sinks.iceberg.removing import bounds, read, telling_unread
from airflow_provider_microbatch.sinks.placed import OpenPlaced
from airflow_provider_microbatch.sinks.placed.data_files import rows_by_batch
from airflow_provider_microbatch.sinks.placed.unrecorded import Asked, asked_by, without_record

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import FileScanTask, Table


class RowsInFiles:
    """A file is read once, however often a commit is tried, or batches are asked for: nobody changes it."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, frozenset[str]], Counter[BatchKey]] = {}

    def of(self, asked: Asked, table: Table, snapshot_id: int, *, where: str) -> dict[BatchKey, int]:
        """How many rows the table has in that snapshot of each batch that is asked for. By their statistics, other
        files are not read.

        :raises SinkError: if a file that may have some cannot be read.
        """
        is_told = set(RESERVED_COLUMNS) <= {one.name for one in table.schema().fields}
        rows, found = _may_be_of(asked), dict[BatchKey, int]()
        # Without what somebody has deleted in it, a file has more rows, and none that it does not show. So the deletes
        # count only where there are rows: pyiceberg plans no file of a table of which somebody deletes rows by values.
        manifests = _manifests(table, snapshot_id, but=asked.passed)
        with telling_unread(where):
            if is_told and self._asked_of(asked, table, _undeleted(table, manifests, rows)):
                found = self._asked_of(asked, table, table.scan(row_filter=rows, snapshot_id=snapshot_id).plan_files())
        if not found:
            asked.passed.update(one.manifest_path for one in manifests)
        return found

    def _asked_of(self, asked: Asked, table: Table, tasks: Iterable[FileScanTask]) -> dict[BatchKey, int]:
        found = Counter[BatchKey]()
        for task in tasks:
            if asked.may_be_in(*(bounds(table, task.file, name) for name in RESERVED_COLUMNS)):
                found.update(asked.of(self._rows(table, task)))
        return found

    def _rows(self, table: Table, task: FileScanTask) -> Counter[BatchKey]:
        at = (task.file.file_path, frozenset(one.file_path for one in task.delete_files))
        if at not in self._read:
            self._read[at] = _by_batch(table, task)
        return self._read[at]


class LooksForCopies(OpenPlaced):
    """What a run, a clear, a check and a ``rewind`` ask of such rows."""

    _log: IcebergLog

    @property
    def _where(self) -> str:
        return self._log.where

    def unrecorded(self, batch: ExpectedBatch, wrote: Sequence[Sink]) -> str | None:
        with reporting("look for", batch.key):
            look = self._log.look() if self._folder.is_here(batch.tables) else None
            return None if look is None else self._unrecorded(look, Asked(batch.key))

    def _unrecorded(self, look: Look, asked: Asked) -> str | None:
        """Rows of such batches, in words; None if there are none. What is on record is never read: a rewind would read
        all that it is about to take out."""
        if look.head is None or (asked.only is not None and self._number(look, asked.only) is not None):
            return None
        found = self._there.of(asked, look.table, look.head.snapshot_id, where=self._where)
        left = {key: rows for key, rows in found.items() if self._number(look, key) is None}
        told = {"where": self._where, "log": "its properties have", "table": self._log.in_sql}
        return without_record(asked, left, **told) if left else None

    def _asked(self, look: Look, batch: ExpectedBatch, epoch: int) -> Asked | None:
        return asked_by(
            batch,
            epoch,
            is_in=lambda key: self._number(look, key) is not None,
            has_any=lambda: any(self._batches(look)),
            # The commit that is to come sets the mark, and nobody would ask any more.
            back=self._maybe_back(look),
        )

    def _maybe_back(self, look: Look) -> frozenset[BatchKey]:
        """Batches that were taken out, and of which the branch may have rows again, since a rollback of it is to stay:
        of all lanes, whoever has published them, and whatever was made under their numbers since."""
        if not self._log.stays_rolled_back(look):
            return frozenset()
        return frozenset(self._records.batches()) - self._log.ledger.batches(self._log.record(look)).keys()

    def _check_none_unrecorded(self, look: Look, asked: Asked | None) -> None:
        """:raises SinkError: if the branch has rows of a batch that is asked for: it would be there twice."""
        left = None if asked is None else self._unrecorded(look, asked)
        if left is not None:
            raise SinkError(f"{left} Nothing was published.")

    def _check_none_came_back(self, look: Look) -> None:
        """:raises SinkError: if no batch could come in, since the branch has rows again of some that were taken out."""
        back = self._maybe_back(look)
        left = self._unrecorded(look, Asked(min(back), back=back)) if back else None
        if left is not None:
            raise SinkError(f"{left} Nothing was written.")

    def _batches(self, look: Look) -> Iterator[BatchKey]:
        # Between look and commit, a record of 100,000 batches takes half a second.
        yield from (key for key, _ in self._log.ledger.items(self._log.record(look)))

    def _number(self, look: Look | None, key: BatchKey) -> int | None:
        return None if look is None else self._log.ledger.number(self._log.record(look), key.lane, key.id)

    @cached_property
    def _there(self) -> RowsInFiles:
        return RowsInFiles()


def _by_batch(table: Table, task: FileScanTask) -> Counter[BatchKey]:
    import pyarrow as pa
    from pyiceberg.expressions import NotNull, Reference

    found, (lane, _) = Counter[BatchKey](), RESERVED_COLUMNS
    for part in read(table, task, NotNull(term=Reference(lane)), RESERVED_COLUMNS):
        found.update(rows_by_batch(pa.Table.from_batches([part])))
    return found


def _may_be_of(asked: Asked) -> BooleanExpression:
    from pyiceberg.expressions import And, EqualTo, NotNull, Reference
    from pyiceberg.expressions.literals import literal

    lane, number = map(Reference, RESERVED_COLUMNS)
    if asked.only is None:
        return NotNull(term=lane)
    key = asked.only
    return And(EqualTo(term=lane, value=literal(key.lane)), EqualTo(term=number, value=literal(key.id)))


def _manifests(table: Table, snapshot_id: int, *, but: Collection[str]) -> list[ManifestFile]:
    """The snapshot's manifests of data files, without those of the paths ``but``."""
    from pyiceberg.manifest import ManifestContent

    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    found = [] if snapshot is None else snapshot.manifests(table.io)
    return [one for one in found if one.content == ManifestContent.DATA and one.manifest_path not in but]


def _undeleted(table: Table, manifests: Iterable[ManifestFile], rows: BooleanExpression) -> Iterator[FileScanTask]:
    """The data files that may have such rows, without what was deleted in them."""
    from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
    from pyiceberg.manifest import DataFileContent
    from pyiceberg.table import FileScanTask

    may_have = _InclusiveMetricsEvaluator(table.schema(), rows)
    for manifest in manifests:
        for entry in manifest.fetch_manifest_entry(table.io):
            if entry.data_file.content == DataFileContent.DATA and may_have.eval(entry.data_file):
                yield FileScanTask(entry.data_file)
