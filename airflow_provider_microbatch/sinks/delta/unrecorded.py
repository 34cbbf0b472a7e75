"""Tells which rows a Delta table has of batches of which its log has no record: somebody has copied them there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import ExpectedBatch, Sink
from airflow_provider_microbatch.sinks.delta.home import Home
from airflow_provider_microbatch.sinks.delta.log import Snapshot
from airflow_provider_microbatch.sinks.delta.lost_rows import LooksForRows
from airflow_provider_microbatch.sinks.delta.removing import files_with, rows_in
from airflow_provider_microbatch.sinks.placed.unrecorded import Asked, asked_by, without_record


class LooksForCopies(LooksForRows):
    """What a publish, a clear and a ``rewind`` ask of such rows."""

    _home: Home

    def unrecorded(self, batch: ExpectedBatch, wrote: Sequence[Sink]) -> str | None:
        with self._telling("look for", batch.key):
            snapshot = self._log.open() if self._is_here(batch.tables) else None
            if snapshot is None or not self._present_in(snapshot).may_have(batch.key):
                return None
            return self._unrecorded(snapshot, Asked(batch.key))

    def _unrecorded(self, snapshot: Snapshot, asked: Asked) -> str | None:
        """Rows of such batches, in words; None if there are none. What was taken out, and is there again, was put back:
        see :meth:`came_back`. What is on record is never read: a rewind would read all that it is about to take out."""
        if asked.only is not None and snapshot.has_had(asked.only):
            return None
        files = list(files_with(snapshot, asked))
        found = Counter[BatchKey]()
        for path, may_have in files:
            found.update(asked.of(self._rows_in(path)) if may_have else {})
        left = {key: rows for key, rows in found.items() if not snapshot.has_had(key)}
        if not left:
            asked.passed.update(path for path, _ in files)
            return None
        where = self._home.where
        told = {"where": f"the Delta table {where}", "log": "its log has", "table": f"delta.`{where}`"}
        return without_record(asked, left, **told)

    def _rows_in(self, path: str) -> Mapping[BatchKey, int]:
        """A file is opened once, however many batches are asked for: nobody changes it."""
        if path not in self._opened:
            self._opened[path] = rows_in(self._home, path)
        return self._opened[path]

    @cached_property
    def _opened(self) -> dict[str, Counter[BatchKey]]:
        return {}

    def _asked(self, snapshot: Snapshot, batch: ExpectedBatch, epoch: int) -> Asked | None:
        return asked_by(
            batch,
            epoch,
            is_in=lambda key: snapshot.number(key) is not None,
            has_any=lambda: snapshot.has_any(self._records),
        )

    def _check_none_unrecorded(self, snapshot: Snapshot, asked: Asked | None) -> None:
        """:raises SinkError: if the table has rows of a batch that is asked for: it would be there twice."""
        left = None if asked is None else self._unrecorded(snapshot, asked)
        if left is not None:
            raise SinkError(f"{left} Nothing was published.")
