"""A Delta table, opened: the operations that the orchestrator calls."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import Compacted, Compaction, ExpectedBatch, Manifest, PublishedRows, Sink
from airflow_provider_microbatch.sinks.delta import DeltaSink, protocol
from airflow_provider_microbatch.sinks.delta.adding import add_of, partition_values
from airflow_provider_microbatch.sinks.delta.columns import Columns
from airflow_provider_microbatch.sinks.delta.compacting import Compacting
from airflow_provider_microbatch.sinks.delta.log import PATIENCE_SECONDS, WITHDRAWN, DeltaLog, Snapshot
from airflow_provider_microbatch.sinks.delta.present import Present
from airflow_provider_microbatch.sinks.delta.removing import Removal, files_of, removal_of
from airflow_provider_microbatch.sinks.file.report import read_schema, reporting
from airflow_provider_microbatch.sinks.placed import OpenPlaced, Placed, Published, rows_written
from airflow_provider_microbatch.sinks.placed.places import Place, in_place
from airflow_provider_microbatch.sinks.table_folder import check_writable

log = logging.getLogger(__name__)


class OpenDelta(OpenPlaced):
    """Each method reads the log anew. A commit is for exactly the version that follows the snapshot it checked, so if
    two attempts publish one batch, the later one finds the batch in; before its next try a method repeats its checks.

    :param sink: its definition.
    """

    def __init__(self, sink: DeltaSink) -> None:
        super().__init__(sink.folder, partition_by=sink.partition_by, options=sink.options)
        self._sink = sink
        self._log = DeltaLog(sink.root)
        self._present: Present | None = None

    @property
    def definition(self) -> DeltaSink:
        return self._sink

    def check(self) -> None:
        check_writable(self._root)
        snapshot = self._log.open()
        if snapshot is not None:
            protocol.check(snapshot, partition_by=self._sink.partition_by, where=str(self._root))

    def contains(self, batch: ExpectedBatch) -> Manifest | None:
        with reporting("look for", batch.key):
            if not self._folder.is_here(batch.tables):
                return None
            found = self._published(self._log.open(), batch)
            if found is None:
                return None
            # A commit entry relies on this answer, and the publisher may have died before its commit was on disk.
            self._settle(found)
        return found.own

    def withdraw(self, batch: ExpectedBatch, epoch: int) -> bool:
        key, rows = batch.key, None
        if self.contains(batch) is None:
            return False
        with reporting("withdraw", key):
            for snapshot in self._log.snapshots():
                found = self._published(snapshot, batch)
                if snapshot is None or found is None:
                    return False
                self._check_is_of(found, epoch)
                self._settle(found)
                removal = self._removal(snapshot, batch, rows)
                rows = rows or (snapshot.version, removal.rows)
                if self._commit(snapshot, [], removal, batch, WITHDRAWN, {"withdrawn": epoch}):
                    self._log.sync(since_ns=0)
                    return True
        raise self._outrun(key)

    def published_rows(self, batch: ExpectedBatch) -> PublishedRows:
        with reporting("read", batch.key):
            snapshot = self._log.open()
            if snapshot is None or self._published(snapshot, batch) is None:
                raise SinkError(f"batch {batch.key} is not in the Delta table {self._root}.")
            protocol.check(snapshot, partition_by=self._sink.partition_by, where=self._where)
            # From a file with a deletion vector, Spark would read rows that were deleted.
            protocol.check_may_remove(snapshot, where=self._where)
            base = f"file://{self._root}"
            paths = tuple(f"{base}/{path}" for path in files_of(snapshot, batch.key))
        return PublishedRows(format="parquet", base=base, paths=paths)

    def compact(self, wanted: Compaction) -> Compacted:
        with reporting("compact", self._root):
            if not self._folder.is_here(wanted.tables):
                return Compacted()
            return Compacting(self._log, self._records, partition_by=self._sink.partition_by).compact(wanted)

    def damage(self, batch: ExpectedBatch, found: Manifest) -> str | None:
        rows = rows_written(found)
        with reporting("look into", batch.key):
            snapshot = self._log.open()
            number = None if snapshot is None else snapshot.number(batch.key)
            if snapshot is None or number is None or not rows:
                return None
            if self._present is None or self._present.version != snapshot.version:
                self._present = Present(snapshot)
            if self._present.may_have(batch.key):
                return None
            by = self._present.taken_out_by(batch.key, f"{number:016x}")
        told = f"; taken out, most likely, by {by}" if by else ""
        return f"none of its {rows:,} rows is in version {snapshot.version}{told}"

    def is_table_of(self, before: Sink, tables: KnownTables) -> bool:
        return isinstance(before, DeltaSink) and self._folder.is_table_of(before.folder, tables)

    def batches(self, lane: str, tables: KnownTables) -> list[int]:
        with reporting("list", self._root):
            snapshot = self._log.open() if self._folder.is_here(tables) else None
            if snapshot is None:
                return []
            protocol.check_memory(snapshot, where=str(self._root))
            return [id for id in self._records.ids(lane) if snapshot.number(BatchKey(lane, id)) is not None]

    def lanes(self, tables: KnownTables) -> list[str]:
        with reporting("list", self._root):
            return self._records.lanes() if self._folder.is_here(tables) else []

    @property
    def _where(self) -> str:
        return str(self._root)

    def _numbers_for_good(self, key: BatchKey) -> Collection[int]:
        snapshot = self._log.open()
        number = None if snapshot is None else snapshot.number(key)
        return () if number is None else (number,)

    def _published(self, snapshot: Snapshot | None, batch: ExpectedBatch) -> Published | None:
        """:raises ForeignBatchError: if other output is at the batch's place."""
        if snapshot is None:
            return None
        protocol.check_memory(snapshot, where=self._where)
        return self._published_as(snapshot.number(batch.key), batch)

    def _settle(self, found: Published) -> None:
        """Bring the log's record of the output to disk, so that it survives a power cut; then remove the mark of the
        attempt's place, which is not needed any more."""
        place = self._place_of(found)
        try:
            since_ns = place.mark.stat().st_mtime_ns
        except FileNotFoundError:
            return
        self._log.sync(since_ns=since_ns)
        self._places.forget(place)

    def _forget(self, place: Place) -> None:
        self._log.sync(since_ns=place.mark.stat().st_mtime_ns)
        self._places.forget(place)

    def _put(self, batch: ExpectedBatch, epoch: int, *, replaces: bool) -> Manifest:
        """Commit the attempt's files to the table's log, or find that some attempt's files are in it."""
        key, rows = batch.key, None
        with reporting("replace" if replaces else "publish", key), self._places.locked(batch.staged, epoch):
            for snapshot in self._log.snapshots():
                found = self._published(snapshot, batch)
                if found is not None and self._stands(found, epoch, replaces=replaces):
                    self._settle(found)
                    return found.own
                placed = self._place(batch, epoch)
                columns = self._columns(placed)
                if snapshot is not None and self._widen(snapshot, columns):
                    continue
                removal = Removal()
                if snapshot is not None and found is not None:
                    self._settle(found)
                    removal = self._removal(snapshot, batch, rows)
                    rows = rows or (snapshot.version, removal.rows)
                    self._warn_of_deleted(found, removal.rows)
                if self._commit_placed(snapshot, placed, columns, removal, batch):
                    self._settle(Published(placed.place.number, placed.manifest, placed.manifest))
                    return placed.manifest
        raise self._outrun(key)

    def _columns(self, placed: Placed) -> Columns:
        told = read_schema(self._root / placed.place.below)
        where = f"the Delta table {self._root}"
        return Columns.of_stage(told, partition_by=self._sink.partition_by, where=where)

    def _widen(self, snapshot: Snapshot, columns: Columns) -> bool:
        """Check that the stage fits the table, and add columns to the table if that is allowed. Two writers that do so
        at once end with the same columns.

        :return: whether the table has changed, and has to be read again.
        """
        protocol.check(snapshot, partition_by=self._sink.partition_by, where=str(self._root))
        where = f"the Delta table {self._root}"
        missing = columns.missing(snapshot.schema, policy=self._sink.schema_policy, where=where)
        if missing:
            log.warning("%s gets the columns %s", where, ", ".join(f"{one['name']} ({one['type']})" for one in missing))
            self._log.add_columns(snapshot, missing)
        return bool(missing)

    def _removal(self, snapshot: Snapshot, batch: ExpectedBatch, before: tuple[int, int] | None) -> Removal:
        """The changes that take the batch out.

        :param before: the version that an earlier try has read, and the number of the batch's rows in it.
        :raises SinkError: if another writer has removed some of these rows since.
        """
        where = self._where
        # Removing a file without naming its deletion vector would leave the file, and its rows, in the table.
        protocol.check(snapshot, partition_by=self._sink.partition_by, where=where)
        protocol.check_may_remove(snapshot, where=where)
        removal = removal_of(snapshot, self._root, batch.key, where=where)
        if before is not None and removal.rows < before[1]:
            removal.undo()
            raise self._deleted_meanwhile(batch.key, snapshot.commits_after(before[0]))
        return removal

    def _commit_placed(
        self,
        snapshot: Snapshot | None,
        placed: Placed,
        columns: Columns,
        removal: Removal,
        batch: ExpectedBatch,
    ) -> bool:
        below, adds = placed.place.below, []
        for file, now in in_place(self._root / below, placed.manifest):
            add = add_of(self._root, f"{below}/{now}", partition_values(file))
            if add is not None:
                adds.append(add)
        identity = placed.manifest.identity
        info = {"epoch": placed.manifest.epoch, "identity": identity.to_dict() if identity else None}
        if snapshot is None:
            return self._log.create(
                adds,
                schema=columns.schema,
                partition_by=self._sink.partition_by,
                key=batch.key,
                number=placed.place.number,
                info=info,
            )
        return self._commit(snapshot, adds, removal, batch, placed.place.number, info)

    def _commit(
        self,
        snapshot: Snapshot,
        adds: list[Any],
        removal: Removal,
        batch: ExpectedBatch,
        number: int,
        info: Mapping[str, Any],
    ) -> bool:
        told = {**info, "batch": str(batch.key), "manifest": f"{number:016x}"}
        # Files rewritten for a failed commit are left to VACUUM: the commit may have succeeded after all.
        return self._log.commit(snapshot, [*removal.actions, *adds], key=batch.key, number=number, info=told)

    def _outrun(self, key: BatchKey) -> SinkError:
        return SinkError(
            f"batch {key} could not be committed to the Delta table {self._root} within {PATIENCE_SECONDS:.0f} s: "
            "others commit all the time, or its folder cannot be written. Nothing was changed; run the batch again."
        )
