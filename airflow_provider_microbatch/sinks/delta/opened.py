"""A Delta table on a file system, opened."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from functools import cache

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.sinks import ExpectedBatch, Sink
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.delta.change import Ready
from airflow_provider_microbatch.sinks.delta.folder import Folder
from airflow_provider_microbatch.sinks.delta.table import OpenDeltaTable
from airflow_provider_microbatch.sinks.file.arguments import is_object
from airflow_provider_microbatch.sinks.file.report import read_schema, reporting
from airflow_provider_microbatch.sinks.placed import OpenPlaced
from airflow_provider_microbatch.sinks.placed.logged import Published
from airflow_provider_microbatch.sinks.placed.places import DATA, IsIn, Place, in_place, own_of
from airflow_provider_microbatch.sinks.table_folder import check_file_system, check_writable


class OpenDelta(OpenPlaced, OpenDeltaTable):
    """The operations that the orchestrator calls.

    :param sink: its definition.
    :param data: the folder below the table's of the batches' files.
    :param rows_are_judged: see :class:`~airflow_provider_microbatch.sinks.SinkContext`.
    """

    def __init__(self, sink: DeltaSink, *, data: str = DATA, rows_are_judged: bool = False) -> None:
        OpenPlaced.__init__(self, sink.folder, partition_by=sink.partition_by, options=sink.options, data=data)
        OpenDeltaTable.__init__(self, sink, Folder(sink.root), rows_are_judged=rows_are_judged)

    def check(self) -> None:
        check_writable(self._root)
        check_file_system(self._root)
        self._check_log()

    def is_table_of(self, before: Sink, tables: KnownTables) -> bool:
        if not isinstance(before, DeltaSink) or is_object(before.path):
            return False
        return self._folder.is_table_of(before.folder, tables)

    def _is_here(self, tables: KnownTables) -> bool:
        return self._folder.is_here(tables)

    def _batch_of(self, path: str) -> BatchKey | None:
        own = own_of(path)
        return None if own is None else own[0]

    def _number_of(self, path: str, *, maybe: int | None = None) -> int:
        own = own_of(path)
        assert own is not None
        return own[1]

    def _ready(self, batch: ExpectedBatch, epoch: int) -> Ready:
        placed = self._place(batch, epoch)
        below = placed.place.below
        return Ready(
            manifest=placed.manifest,
            number=placed.place.number,
            below=below,
            schema=read_schema(self._root / below),
        )

    def _in_place(self, ready: Ready) -> Iterator[tuple[str, str]]:
        return in_place(self._root / ready.below, ready.manifest)

    def _confirm(self, found: Published) -> None:
        # The publisher may have died before its commit was on disk.
        self._settle(found)

    def _numbers_for_good(self, key: BatchKey) -> Collection[int]:
        snapshot = self._log.open()
        number = None if snapshot is None else snapshot.number(key)
        return () if number is None else (number,)

    def _is_in_now(self) -> IsIn:
        look = cache(self._log.open)
        return lambda key, number: (now := look()) is not None and now.number(key) == number

    def _settle(self, found: Published) -> None:
        self._forget(self._place_of(found))

    def _forget(self, place: Place) -> None:
        """Bring the log's record of the output to disk, so that it survives a power cut; then remove the mark of the
        attempt's place, which is not needed any more."""
        try:
            since_ns = place.mark.stat().st_mtime_ns
        except FileNotFoundError:
            return
        self._log.sync(since_ns=since_ns)
        self._places.forget(place)

    def _publishing(self, batch: ExpectedBatch, epoch: int) -> AbstractContextManager[None]:
        return self._places.locked(batch.staged, epoch)

    def _telling(self, doing: str, key: BatchKey | None = None) -> AbstractContextManager[None]:
        return reporting(doing, key) if key is not None else reporting(f"{doing} of", self._root)
