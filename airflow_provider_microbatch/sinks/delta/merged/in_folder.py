"""A Delta table on a file system into which changes are merged, opened."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.delta.merged.opened import OpenMerged
from airflow_provider_microbatch.sinks.delta.opened import OpenDelta
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.merged.history import CHANGES, History, folder_of_changes
from airflow_provider_microbatch.sinks.merged.newest import FolderNewest
from airflow_provider_microbatch.sinks.placed.logged import Published


class OpenMergedDelta(OpenMerged, OpenDelta):
    """The operations that the orchestrator calls.

    :param sink: its definition.
    :param merge: how its changes are merged.
    """

    def __init__(self, sink: DeltaSink, merge: Merge) -> None:
        OpenDelta.__init__(self, sink, data=CHANGES)
        self._merge = merge
        self._newest = FolderNewest(sink.root)
        self._history = History(files=self._home, records=self._records, where=self._named, folder_of=folder_of_changes)

    def stage(self, batch: BatchIdentity, epoch: int) -> Stage:
        return self._as_changes(super().stage(batch, epoch))

    def _mark_out(self, found: Published) -> None:
        self._places.mark_out(self._place_of(found))

    def _remove_out(self, found: Published) -> None:
        self._places.remove(self._place_of(found))
