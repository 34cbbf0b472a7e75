"""What the orchestrator does with a Delta table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.exceptions import PublishConflictError, SinkError
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.settings import make_private_folder
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, OpenSink, Sink
from airflow_provider_microbatch.sinks.delta import DeltaSink, protocol
from airflow_provider_microbatch.sinks.delta.adding import add_of, in_place, partition_values
from airflow_provider_microbatch.sinks.delta.columns import Columns
from airflow_provider_microbatch.sinks.delta.log import PATIENCE_SECONDS, WITHDRAWN, DeltaLog, Snapshot
from airflow_provider_microbatch.sinks.delta.places import Place, Places
from airflow_provider_microbatch.sinks.delta.records import Records, encode, number_of
from airflow_provider_microbatch.sinks.delta.removing import Removal, removal_of
from airflow_provider_microbatch.sinks.file import STAGING, FileSink
from airflow_provider_microbatch.sinks.file.arguments import RESERVED_COLUMNS
from airflow_provider_microbatch.sinks.file.posix import check_no_link, make_folders, sync_tree
from airflow_provider_microbatch.sinks.file.report import check_files, read_manifest, read_schema, reporting

log = logging.getLogger(__name__)

HIDDEN = "_microbatch"


@dataclass(frozen=True)
class _Published:
    """What the log says is in.

    :param number: of its manifest.
    :param manifest: as it was written.
    :param own: as what it counts for who asks.
    """

    number: int
    manifest: Manifest
    own: Manifest


@dataclass(frozen=True)
class _Placed:
    """What an attempt has written, where the log can name it."""

    manifest: Manifest
    place: Place


class OpenDelta(OpenSink):
    """Each method looks at the log as it is then. A commit is for the version that follows what was looked at, so of
    two who publish one batch the later one finds it in; and what it looked at, it looks at again before its next try.

    :param sink: its definition.
    """

    def __init__(self, sink: DeltaSink) -> None:
        self._sink = sink
        self._root = sink.root
        self._folder = sink.folder
        self._files = FileSink(
            str(sink.root / HIDDEN), format="parquet", partition_by=sink.partition_by, options=sink.options
        )
        self._log = DeltaLog(sink.root)
        self._records = Records(sink.root / HIDDEN / "batches")
        self._places = Places(sink.root, sink.root / HIDDEN)

    @property
    def definition(self) -> DeltaSink:
        return self._sink

    def check(self) -> None:
        FileSink(str(self._root)).check()
        snapshot = self._log.open()
        if snapshot is not None:
            protocol.check(snapshot, partition_by=self._sink.partition_by, where=str(self._root))

    def make_ready(self, tables: KnownTables, *, is_there: Callable[[], bool]) -> None:
        with reporting("make ready", self._root):
            self._folder.make_known(tables, is_there=is_there)
            for folder in (self._root / HIDDEN, self._files.root / STAGING):
                check_no_link(self._root, folder)
                make_folders(folder.parent)
                make_private_folder(folder)

    def stage(self, batch: BatchIdentity, epoch: int) -> Stage:
        stage = self._files.stage(batch, epoch)
        constants = dict(zip(RESERVED_COLUMNS, (batch.key.lane, batch.key.id), strict=True))
        return replace(
            stage,
            writer="airflow_provider_microbatch.runtime.write:write_marked",
            arguments={**stage.arguments, "constants": constants},
        )

    def manifest(self, batch: BatchIdentity, epoch: int) -> Manifest | None:
        staged = self._files.manifest(batch, epoch)
        if staged is not None:
            return staged
        with reporting("read the stage of", batch.key):
            return next((found for _, found in self._marked(batch, epoch)), None)

    def failure(self, batch: BatchIdentity, epoch: int) -> Mapping[str, Any] | None:
        return self._files.failure(batch, epoch)

    def contains(self, batch: ExpectedBatch) -> Manifest | None:
        with reporting("look for", batch.key):
            if not self._folder.is_here(batch.tables):
                return None
            found = self._published(self._log.open(), batch)
            if found is None:
                return None
            # A commit entry rests on this answer, and the publisher may have died before its commit was on disk.
            self._settle(found)
        return found.own

    def publish(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        return self.contains(batch) or self._put(batch, epoch, replaces=False)

    def replace(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        self.contains(batch)
        return self._put(batch, epoch, replaces=True)

    def withdraw(self, batch: ExpectedBatch, epoch: int) -> bool:
        key, rows = batch.key, None
        if self.contains(batch) is None:
            return False
        with reporting("withdraw", key):
            for snapshot in self._log.snapshots():
                found = self._published(snapshot, batch)
                if snapshot is None or found is None:
                    return False
                if found.own.epoch != epoch:
                    raise SinkError(
                        f"batch {key} of {self._root} is attempt {found.own.epoch}'s, not {epoch}'s: replaced "
                        "meanwhile. Nothing was taken out; run the command again."
                    )
                self._settle(found)
                removal = self._removal(snapshot, batch, rows)
                rows = rows or (snapshot.version, removal.rows)
                if self._commit(snapshot, [], removal, batch, WITHDRAWN, {"withdrawn": epoch}):
                    self._log.sync(since_ns=0)
                    return True
        raise self._outrun(key)

    def drop_stage(self, batch: BatchIdentity, epoch: int) -> bool:
        dropped = self._files.drop_stage(batch, epoch)
        with reporting("drop a stage of", batch.key):
            if not self._places.marked(batch, epoch):
                return dropped
            with self._places.locked(batch, epoch):
                snapshot = self._log.open()
                number = snapshot.number(batch.key) if snapshot is not None else None
                # Only now: whoever replaces an attempt forgets its mark first, and its files are still read.
                for place in self._places.marked(batch, epoch):
                    if place.number == number:
                        self._log.sync(since_ns=place.mark.stat().st_mtime_ns)
                        self._places.forget(place)
                    else:
                        self._records.drop(batch.key, place.number)
                        dropped |= self._places.remove(place)
        return dropped

    def fence(self, batch: BatchIdentity, epoch: int, *, by: str) -> None:
        self._files.fence(batch, epoch, by=by)

    def drop_fences(self, checkpoint: str, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        return self._files.drop_fences(checkpoint, older_seconds=older_seconds, dry_run=dry_run)

    def stages(self, checkpoint: str) -> list[tuple[BatchKey, int]]:
        with reporting("list the stages of", self._root):
            return sorted({*self._files.stages(checkpoint), *self._places.stages(checkpoint)})

    def seems_away(self, tables: KnownTables) -> str | None:
        return self._folder.seems_away(tables)

    def is_table_of(self, before: Sink, tables: KnownTables) -> bool:
        return isinstance(before, DeltaSink) and self._folder.is_table_of(before.folder, tables)

    def batches(self, lane: str, tables: KnownTables) -> list[int]:
        with reporting("list", self._root):
            snapshot = self._log.open() if self._folder.is_here(tables) else None
            if snapshot is None:
                return []
            protocol.check_memory(snapshot, where=str(self._root))
            return [id for id in self._records.ids(lane) if snapshot.number(BatchKey(lane, id)) is not None]

    def _marked(self, batch: BatchIdentity, epoch: int) -> Iterator[tuple[Place, Manifest]]:
        """What the attempt has in place, and nobody knows to be published."""
        for place in self._places.marked(batch, epoch):
            found = read_manifest(self._root / place.below, batch.key)
            if found is not None and number_of(encode(found)) == place.number:
                yield place, found

    def _published(self, snapshot: Snapshot | None, batch: ExpectedBatch) -> _Published | None:
        """:raises ForeignBatchError: if something else is at the batch's place."""
        if snapshot is None:
            return None
        protocol.check_memory(snapshot, where=str(self._root))
        number = snapshot.number(batch.key)
        if number is None:
            return None
        manifest = self._records.get(batch.key, number)
        return _Published(number, manifest, batch.check(manifest, where=self.location()))

    def _settle(self, found: _Published) -> None:
        """What the log says lasts through a power cut; then nobody needs to know of the attempt's place any more."""
        identity = found.manifest.identity or BatchIdentity.at(found.manifest.key)
        place = self._places.of(identity, found.manifest.epoch, found.number)
        try:
            since_ns = place.mark.stat().st_mtime_ns
        except FileNotFoundError:
            return
        self._log.sync(since_ns=since_ns)
        self._places.forget(place)

    def _put(self, batch: ExpectedBatch, epoch: int, *, replaces: bool) -> Manifest:
        """Have the attempt's files in the table's log, or find that some attempt's are."""
        key, rows = batch.key, None
        with reporting("replace" if replaces else "publish", key), self._places.locked(batch.staged, epoch):
            for snapshot in self._log.snapshots():
                found = self._published(snapshot, batch)
                if found is not None and (not replaces or found.own.epoch >= epoch):
                    if replaces and found.own.epoch > epoch:
                        raise PublishConflictError(
                            f"batch {key}: attempt {found.own.epoch} is published, which is later than attempt "
                            f"{epoch}. Nothing was replaced."
                        )
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
                    self._warn_of_deleted(found, removal)
                if self._commit_placed(snapshot, placed, columns, removal, batch):
                    self._settle(_Published(placed.place.number, placed.manifest, placed.manifest))
                    return placed.manifest
        raise self._outrun(key)

    def _place(self, batch: ExpectedBatch, epoch: int) -> _Placed:
        """Bring a stage that is whole, of this plan and on disk to where the log can name its files.

        :raises SinkError: if there is none.
        """
        staged, key = batch.staged, batch.key
        own = self._files.manifest(staged, epoch)
        stage = Path(self._files.stage(staged, epoch).report.removeprefix("file://"))
        if own is not None:
            batch.check_stage(own, where=str(stage))
            check_files(stage, own)
            sync_tree(stage)
            place = self._places.of(staged, epoch, self._records.put(own))
            if self._places.take(stage, place):
                return _Placed(own, place)
        for place, found in self._marked(staged, epoch):
            return _Placed(batch.check_stage(found, where=str(self._root / place.below)), place)
        raise SinkError(f"batch {key} attempt {epoch} has no complete stage at {stage}. Run the batch again.")

    def _columns(self, placed: _Placed) -> Columns:
        told = read_schema(self._root / placed.place.below)
        where = f"the Delta table {self._root}"
        return Columns.of_stage(told, partition_by=self._sink.partition_by, where=where)

    def _widen(self, snapshot: Snapshot, columns: Columns) -> bool:
        """See that the stage fits the table, and add columns to the table if that is allowed. Two who do so at once end
        with the same columns.

        :return: whether the table has changed, and has to be looked at again.
        """
        protocol.check(snapshot, partition_by=self._sink.partition_by, where=str(self._root))
        where = f"the Delta table {self._root}"
        missing = columns.missing(snapshot.schema, policy=self._sink.schema_policy, where=where)
        if missing:
            log.warning("%s gets the columns %s", where, ", ".join(f"{one['name']} ({one['type']})" for one in missing))
            self._log.add_columns(snapshot, missing)
        return bool(missing)

    def _removal(self, snapshot: Snapshot, batch: ExpectedBatch, before: tuple[int, int] | None) -> Removal:
        """What takes the batch out.

        :param before: the version that an earlier try has looked at, and the batch's rows in it.
        :raises SinkError: if somebody else has taken some of them away since.
        """
        where = str(self._root)
        # A removal that names no deletion vector leaves a file in that has one, and its rows.
        protocol.check(snapshot, partition_by=self._sink.partition_by, where=where)
        protocol.check_may_remove(snapshot, where=where)
        removal = removal_of(snapshot, self._root, batch.key, where=where)
        if before is not None and removal.rows < before[1]:
            removal.undo()
            raise SinkError(
                f"somebody else has deleted or overwritten rows of batch {batch.key} of {where} while they were about "
                f"to be replaced ({snapshot.commits_after(before[0])}). Nothing was replaced. If the batch's rows are "
                "wanted, clear its task once more."
            )
        return removal

    def _warn_of_deleted(self, found: _Published, removal: Removal) -> None:
        result = found.manifest.result
        # Where a batch has several tables, nothing says which figure is this one's.
        wrote = None if "numOutputRowsBySink" in result else result.get("numOutputRows")
        if isinstance(wrote, int) and removal.rows < wrote:
            log.warning(
                "batch %s of %s had %s rows when it was published, and has %s now: somebody has deleted the others. "
                "The replay brings them back.", found.manifest.key, self._root, wrote, removal.rows,
            )  # fmt: skip

    def _commit_placed(
        self,
        snapshot: Snapshot | None,
        placed: _Placed,
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
        # What was written anew for a commit that failed stays for VACUUM: it may have come to be all the same.
        return self._log.commit(snapshot, [*removal.actions, *adds], key=batch.key, number=number, info=told)

    def _outrun(self, key: BatchKey) -> SinkError:
        return SinkError(
            f"batch {key} could not be committed to the Delta table {self._root} within {PATIENCE_SECONDS:.0f} s: "
            "others commit all the time, or its folder cannot be written. Nothing was changed; run the batch again."
        )
