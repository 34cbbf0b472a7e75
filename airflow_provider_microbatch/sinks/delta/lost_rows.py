"""Tells which rows of its batches a Delta table does not have any more, or has of an attempt before, though its log
counts the batches as in."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest
from airflow_provider_microbatch.sinks.delta.log import DeltaLog, Snapshot
from airflow_provider_microbatch.sinks.delta.present import Present
from airflow_provider_microbatch.sinks.delta.taken_away import taken_away
from airflow_provider_microbatch.sinks.placed.logged import OpenLogged, rows_written
from airflow_provider_microbatch.sinks.taken_away import TakenAway, TellsTakenAway


class LooksForRows(OpenLogged, TellsTakenAway):
    """What ``microbatch check``, and who runs dead letters again, ask of such rows."""

    _log: DeltaLog
    _present: Present | None = None

    @abstractmethod
    def _is_here(self, tables: KnownTables) -> bool:
        """Whether the table is where it was; see :meth:`TableFolder.is_here`."""

    @abstractmethod
    def _telling(self, doing: str, key: BatchKey | None = None) -> AbstractContextManager[None]:
        """Raise errors of the place as errors of the sink."""

    def damage(self, batch: ExpectedBatch, found: Manifest) -> str | None:
        with self._telling("look into", batch.key):
            snapshot = self._log.open()
            return None if snapshot is None else self._differs(snapshot, batch.key, found, for_sure=True)

    def put_back(self, batch: ExpectedBatch, found: Manifest) -> str | None:
        with self._telling("look into", batch.key):
            snapshot = self._log.open()
            return None if snapshot is None else self._put_back(snapshot, batch.key, found, for_sure=False)

    def taken_away(self, lane: str, below: int, tables: KnownTables) -> Sequence[TakenAway]:
        with self._telling("look for batches that are gone"):
            snapshot = self._log.open() if self._is_here(tables) else None
            keys = [BatchKey(lane, id) for id in self._records.ids(lane) if id < below]
            return [] if snapshot is None else list(taken_away(self._present_in(snapshot), self._records, keys))

    def _differs(self, snapshot: Snapshot, key: BatchKey, found: Manifest, *, for_sure: bool) -> str | None:
        """That no row of the batch is in the snapshot any more, or those of an attempt before are, in words; None if
        the rows may be there, or nobody can tell.

        :param for_sure: whether nobody can tell what others have written since a RESTORE; else it counts as nothing.
        """
        rows, number = rows_written(found), snapshot.number(key)
        if number is None or not rows:
            return None
        present = self._present_in(snapshot)
        if present.may_have(key):
            return self._put_back(snapshot, key, found, for_sure=for_sure)
        by = present.taken_out_by(key, f"{number:016x}")
        told = f"; taken out, most likely, by {by}" if by else ""
        return f"none of its {rows:,} rows is in version {snapshot.version}{told}"

    def _put_back(self, snapshot: Snapshot, key: BatchKey, found: Manifest, *, for_sure: bool) -> str | None:
        """See :meth:`put_back`."""
        number, present = snapshot.number(key), self._present_in(snapshot)
        if number is None or not present.may_have(key):
            return None
        back = present.put_back_by(key, f"{number:016x}", for_sure=for_sure)
        told = f"are those of before attempt {found.epoch}: put back by {back}"
        return None if back is None else f"its rows in version {snapshot.version} {told}"

    def _present_in(self, snapshot: Snapshot) -> Present:
        if self._present is None or self._present.version != snapshot.version:
            self._present = Present(snapshot)
        return self._present
