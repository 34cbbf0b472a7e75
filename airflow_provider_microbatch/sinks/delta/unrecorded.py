"""Tells which rows a Delta table has of batches of which its log has no record: somebody has copied them there."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from airflow_provider_microbatch.checkpoint.key import BatchKey, is_lane
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import ExpectedBatch, Sink
from airflow_provider_microbatch.sinks.delta.home import Home
from airflow_provider_microbatch.sinks.delta.log import Snapshot
from airflow_provider_microbatch.sinks.delta.lost_rows import LooksForRows
from airflow_provider_microbatch.sinks.delta.removing import files_with, rows_by_batch
from airflow_provider_microbatch.sinks.placed.logged import without_record

_ASKED = 20
"""How many of a lane's newest manifests the log is asked for: each question replays it."""


class LooksForCopies(LooksForRows):
    """What a publish, a clear and a ``rewind`` ask of such rows."""

    _home: Home

    def unrecorded(self, batch: ExpectedBatch, wrote: Sequence[Sink]) -> str | None:
        with self._telling("look for", batch.key):
            snapshot = self._log.open() if self._is_here(batch.tables) else None
            return None if snapshot is None else self._unrecorded(snapshot, batch.key)

    def _unrecorded(
        self, snapshot: Snapshot, key: BatchKey, *, and_later: bool = False, untold: bool = True
    ) -> str | None:
        """See :meth:`unrecorded`. What was taken out, and is there again, was put back: see :meth:`came_back`.

        :param and_later: whether the later batches of its lane are asked for, too: then no batch of it is on record.
        :param untold: see :func:`files_with`.
        """
        if snapshot.has_had(key) or not (and_later or self._present_in(snapshot).may_have(key)):
            return None
        ids = range(key.id, sys.maxsize if and_later else key.id + 1)
        paths, where = files_with(snapshot, key.lane, ids, untold=untold), self._home.where
        rows = sum(self._rows_in(path, key.lane, ids) for path in paths)
        if rows == 0:
            return None
        told = {"where": f"the Delta table {where}", "log": "its log has", "table": f"delta.`{where}`"}
        return without_record(key, rows, and_later=and_later, **told)

    def _rows_in(self, path: str, lane: str, ids: range) -> int:
        """A file is opened once, however often a commit is tried, or batches are asked for: nobody changes it."""
        if path not in self._opened:
            self._opened[path] = rows_by_batch(self._home, path)
        return sum(rows for key, rows in self._opened[path].items() if key.lane == lane and key.id in ids)

    @cached_property
    def _opened(self) -> dict[str, Counter[BatchKey]]:
        return {}

    def _check_none_unrecorded(self, snapshot: Snapshot, key: BatchKey, epoch: int, *, replaces: bool) -> None:
        """Check that the table has no rows of a batch that is about to come in, of which the log does not know.

        Before the first batch of a lane, no row may be of it or of a later one: a copy has those of batches that a
        checkpoint which begins anew makes again, each of them later for the first time. Behind that, only an attempt
        that is not the first asks, for rows that somebody has put in by hand: to ask of each new batch, all files would
        be gone through. A batch that is replayed was planned when the later ones were, too.

        :raises SinkError: if it has: the batch would be there twice.
        """
        if snapshot.has_had(key):
            return
        is_first = not replaces and not self._is_on_record(snapshot, key.lane, maybe=key.id - 1)
        if not is_first and epoch == 1:
            return
        # Files of others from before they had our columns tell nothing. They are looked into before any batch is in;
        # each later look would open them all again.
        is_new = not any(self._is_on_record(snapshot, lane) for lane in filter(is_lane, self._records.lanes()))
        left = self._unrecorded(snapshot, key, and_later=is_first, untold=is_new)
        if left is not None:
            raise SinkError(f"{left} Nothing was published.")

    def _is_on_record(self, snapshot: Snapshot, lane: str, *, maybe: int = -1) -> bool:
        """Whether the log knows of a batch of the lane, also of one that was taken out.

        :param maybe: the id of one of which it most likely does.
        """
        if maybe >= 0 and snapshot.has_had(BatchKey(lane, maybe)):
            return True
        return any(snapshot.has_had(BatchKey(lane, id)) for id in list(self._records.ids(lane))[: -_ASKED - 1 : -1])
