"""A Delta table in a bucket into which changes are merged, opened.

::

    <table>/microbatch/merged/…                             rows of the newest changes, which readers look at
    <table>/_microbatch/changes/live/7/<checkpoint>.2/…     written by attempt 2, never moved: the changes of batch 7
    <table>/_microbatch/newest/…                            as on a file system

Files have names of their own, and a record is put on the condition that it is not there: who sleeps, or sends a request
again, writes over nothing. What is put counts when a version names it, and that version is put on a condition too.

The changes of an attempt that a replay or a withdrawal takes out go at once. Before the commit their stage gets a mark
again, and one by which no publish of it begins: a publisher that has slept since before the attempt was in is refused
by the log, and then, when it has looked at the log again, by the mark, or because there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.sinks import Manifest, SinkContext
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.delta.merged.opened import OpenMerged
from airflow_provider_microbatch.sinks.delta.objects import OpenDeltaInBucket
from airflow_provider_microbatch.sinks.delta.objects.layout import InDelta
from airflow_provider_microbatch.sinks.file.objects.layout import Written
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.merged.history import CHANGES, History
from airflow_provider_microbatch.sinks.merged.newest import FOLDER, NewestRecords
from airflow_provider_microbatch.sinks.placed.logged import Published
from airflow_provider_microbatch.stores.object_store import ObjectStore


class Changes(InDelta):
    """The changes of one attempt. No log names their files, and VACUUM must not find them."""

    data: ClassVar[str] = CHANGES


@dataclass(frozen=True)
class ObjectNewest(NewestRecords):
    """:param store: :data:`FOLDER` of the table."""

    store: ObjectStore

    def _where(self, name: str) -> str:
        return f"{self.store.location}/{name}"

    def _names(self) -> Iterable[str]:
        return self.store.list("")

    def _read(self, name: str) -> bytes:
        data = self.store.get(name)
        if data is None:
            raise FileNotFoundError(self._where(name))
        return data

    def _write(self, name: str, data: bytes) -> None:
        if not self.store.put_if_absent(name, data) and self.store.get(name) != data:
            raise SinkError(f"{self._where(name)} is not what it was: somebody changed it. Nothing was published.")

    def _remove(self, names: Sequence[str]) -> None:
        self.store.delete_many(names)


class OpenMergedDeltaInBucket(OpenMerged, OpenDeltaInBucket):
    """The operations that the orchestrator calls.

    :param sink: its definition.
    :param merge: how its changes are merged.
    :param context: finds the table's connection.
    """

    layout: ClassVar[type[Written]] = Changes

    def __init__(self, sink: DeltaSink, merge: Merge, context: SinkContext) -> None:
        # Which rows the table takes, a change does not tell.
        OpenDeltaInBucket.__init__(self, sink, sink.address, replace(context, rows_are_judged=False))
        self._merge = merge
        self._newest = ObjectNewest(self._store.scoped(FOLDER))
        self._history = History(files=self._home, records=self._records, where=self._named, folder_of=self._folder_of)

    def stage(self, batch: BatchIdentity, epoch: int) -> Stage:
        return self._as_changes(super().stage(batch, epoch))

    def _mark_out(self, found: Published) -> None:
        self._stages.give_up(self._written_by(found.manifest))

    def _settle(self, found: Published) -> None:
        if self._stages.is_there(self._written_by(found.manifest)):  # else it goes out, and its files with the mark
            super()._settle(found)

    def _forget_in(self, written: Written) -> None:
        """Nothing: the mark may be that it goes out."""

    def _remove_out(self, found: Published) -> None:
        written = self._written_by(found.manifest)
        self._stages.remove(written)
        self._stages.forget(written)

    def _folder_of(self, manifest: Manifest, number: int) -> str:
        return self._written_by(manifest).folder
