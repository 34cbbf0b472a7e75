"""A Delta table on a file system into which changes are merged, opened."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.sinks import Manifest
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.delta.merged.history import CHANGES, History
from airflow_provider_microbatch.sinks.delta.merged.newest import FolderNewest
from airflow_provider_microbatch.sinks.delta.merged.opened import OpenMerged
from airflow_provider_microbatch.sinks.delta.opened import OpenDelta
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.placed.logged import Published
from airflow_provider_microbatch.sinks.placed.places import folder_of_batch


class OpenMergedDelta(OpenMerged, OpenDelta):
    """The operations that the orchestrator calls.

    :param sink: its definition.
    :param merge: how its changes are merged.
    """

    def __init__(self, sink: DeltaSink, merge: Merge) -> None:
        OpenDelta.__init__(self, sink, data=CHANGES)
        self._merge = merge
        self._newest = FolderNewest(sink.root)
        self._history = History(self._home, self._records, folder_of_changes)

    def stage(self, batch: BatchIdentity, epoch: int) -> Stage:
        return self._as_changes(super().stage(batch, epoch))

    def _mark_out(self, found: Published) -> None:
        self._places.mark(self._place_of(found))

    def _remove_out(self, found: Published) -> None:
        self._places.remove(self._place_of(found))


def folder_of_changes(manifest: Manifest, number: int) -> str:
    """See :class:`History`."""
    return f"{folder_of_batch(manifest.key, data=CHANGES)}{number:016x}"
