"""Calls the user's function for a stage, and records that the function has returned."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.exceptions import MicroBatchError, PublishConflictError, SinkError
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, Sink
from airflow_provider_microbatch.sinks.file.lock import TABLE_SECONDS, locked
from airflow_provider_microbatch.sinks.file.posix import check_no_link
from airflow_provider_microbatch.sinks.file.removal import folder_of, remove_in
from airflow_provider_microbatch.sinks.file.report import check_files, data_files, read_manifest, reporting
from airflow_provider_microbatch.sinks.foreach import ForeachBatch, ForeachSink, StagedRows
from airflow_provider_microbatch.sinks.foreach.called import called_for, forget_call, is_called, note_call
from airflow_provider_microbatch.sinks.staged_in_files import StagedInFiles

LOCK_SECONDS = 600.0
"""How long a process waits for another one that is calling the function for the same batch."""


class OpenForeach(StagedInFiles):
    """A batch is in when the function has returned for it and its stage was renamed to its place. A mark is there from
    before the call until then: where a process has died between, or the call raised, the function is called again, or
    what it may have brought is taken out with what is left of the attempt. Only one process at a time calls it for a
    batch, and only for an attempt newer than the one that is in: an old attempt that wakes up finds the newer one, and
    calls nothing."""

    def __init__(self, sink: ForeachSink) -> None:
        self._sink = sink
        self._files = sink.files

    @property
    def definition(self) -> ForeachSink:
        return self._sink

    def check(self) -> None:
        self._files.check()
        self._calling("look", self._sink.look)

    def make_ready(self, tables: KnownTables, *, is_there: Callable[[], bool]) -> None:
        self._files.make_ready(tables, is_there=is_there)

    def stage(self, batch: BatchIdentity, epoch: int) -> Stage:
        return self._files.stage(batch, epoch)

    def manifest(self, batch: BatchIdentity, epoch: int) -> Manifest | None:
        return self._files.manifest(batch, epoch)

    def contains(self, batch: ExpectedBatch) -> Manifest | None:
        return self._files.contains(batch)

    def seen(self, batch: ExpectedBatch) -> Manifest | None:
        """Also what the function may have brought of a batch that is not in: a process has died over its call."""
        found = self.contains(batch)
        if found is not None:
            return found
        with reporting("read the mark of", batch.key):
            return called_for(self._files.root, batch)

    def publish(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        found = self.contains(batch)
        if found is not None:
            return found
        with self._locked(batch.key):
            found = self.contains(batch)
            if found is None:
                self._write(batch, epoch, is_replay=False)
                found = self._files.publish(batch, epoch)
                self._forget_call(batch.identity)
                self._drop_rows(batch.key)
        return found

    def replace(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        with self._locked(batch.key):
            found = self.contains(batch)
            if found is not None and found.epoch > epoch:
                raise PublishConflictError(
                    f"batch {batch.key}: attempt {found.epoch} is published, which is later than attempt {epoch}. "
                    "Nothing was replaced."
                )
            if found is None or found.epoch < epoch:
                self._write(batch, epoch, is_replay=True)
            found = self._files.replace(batch, epoch)
            self._forget_call(batch.identity)
            self._drop_rows(batch.key)
        return found

    def withdraw(self, batch: ExpectedBatch, epoch: int) -> bool:
        with self._locked(batch.key):
            found = self.contains(batch)
            if found is None and not is_called(self._files.root, batch.identity):
                return False
            if found is not None and found.epoch != epoch:
                raise SinkError(
                    f"batch {batch.key} of {self.location()} is attempt {found.epoch}'s, not {epoch}'s: replaced "
                    "meanwhile. Nothing was taken out; run the command again."
                )
            self._take_out(batch.identity, epoch)
            is_out = found is None or self._files.withdraw(batch, epoch)
            self._forget_call(batch.identity)
        return is_out

    def drop_stage(self, batch: BatchIdentity, epoch: int) -> bool:
        """Drop the stage, but not while the function is called for the batch: what the function has brought by then
        would be of an attempt that is not on record as the batch's, and whoever drops the stage goes on from another.
        So would what it has brought for one that died before its record: that is taken out, since no batch of that
        number may follow. A class that takes nothing out leaves it, and the mark of it, to the next call.

        :raises SinkError: if the call takes longer than :data:`TABLE_SECONDS`, or if nothing could be taken out.
        """
        if not os.path.lexists(self._stage_folder(batch, epoch)):
            return self._files.drop_stage(batch, epoch)
        with self._locked(batch.key, seconds=TABLE_SECONDS):
            is_left = is_called(self._files.root, batch) and not self._is_recorded(batch)
            if is_left and self._sink.can_withdraw:
                self._take_out(batch, epoch)
                self._forget_call(batch)
            return self._files.drop_stage(batch, epoch)

    def drop_replaced(self, checkpoint: str, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        return self._files.drop_replaced(checkpoint, older_seconds=older_seconds, dry_run=dry_run)

    def stages(self, checkpoint: str) -> list[tuple[BatchKey, int]]:
        return self._files.stages(checkpoint)

    def seems_away(self, tables: KnownTables) -> str | None:
        return self._files.seems_away(tables)

    def is_table_of(self, before: Sink, tables: KnownTables) -> bool:
        return isinstance(before, ForeachSink) and self._files.is_table_of(before.files, tables)

    def batches(self, lane: str, tables: KnownTables) -> list[int]:
        return self._files.batches(lane, tables)

    def lanes(self, tables: KnownTables) -> list[str]:
        return self._files.lanes(tables)

    def _write(self, batch: ExpectedBatch, epoch: int, *, is_replay: bool) -> None:
        own = self._files.manifest(batch.staged, epoch)
        stage = self._stage_folder(batch.staged, epoch)
        if own is None:
            raise SinkError(f"batch {batch.key} attempt {epoch} has no complete stage at {stage}. Run the batch again.")
        with reporting("read the stage of", batch.key):
            batch.check_stage(own, where=str(stage))
            check_files(stage, own)
        rows = StagedRows(tuple(stage / name for name in sorted(own.files)), self._sink.format)
        with reporting("put a mark for", batch.key):
            is_first = note_call(self._files.root, batch.identity, epoch)
        told = _told(batch.identity, epoch, is_replay=is_replay or not is_first)
        try:
            self._calling("write", lambda: self._sink.write(told, rows))
        except Exception:
            # Whatever the class promises, a call that lost its connection while the target committed has brought all.
            # Where that can be taken out, it is; else the promise is all there is to go by.
            if is_first and not self._sink.can_withdraw:
                self._forget_call(batch.identity)
            raise

    def _take_out(self, batch: BatchIdentity, epoch: int) -> None:
        self._calling("take_out", lambda: self._sink.take_out(_told(batch, epoch, is_replay=True)))

    def _is_recorded(self, batch: BatchIdentity) -> bool:
        """Whether there is a record by which a rewind finds the batch's rows, of whichever of its attempts."""
        found = read_manifest(self._files.published_path(batch.key), batch.key)
        return found is not None and (found.identity is None or found.identity.checkpoint == batch.checkpoint)

    def _forget_call(self, batch: BatchIdentity) -> None:
        with reporting("remove the mark of", batch.key):
            forget_call(self._files.root, batch)

    def _drop_rows(self, key: BatchKey) -> None:
        """Remove the batch's staged rows, which are not needed again: the record of the batch stays. If a process dies
        before this, the rows stay."""
        root = self._files.root
        folder = root / f"lane={key.lane}" / f"batch_id={key.id}"
        with reporting("remove staged rows of", key):
            for path in list(data_files(folder)):
                with folder_of(root, path) as held:
                    remove_in(held, path)

    def _calling(self, name: str, call: Callable[[], None]) -> None:
        """Raise an error of the user's code as an error of the sink, with the original as its cause."""
        try:
            call()
        except MicroBatchError:
            raise
        except Exception as error:
            what = f"{type(self._sink).__name__}.{name}"
            raise SinkError(f"{what} raised {type(error).__name__}: {error}") from error

    def _stage_folder(self, batch: BatchIdentity, epoch: int) -> Path:
        return Path(self._files.stage(batch, epoch).report.removeprefix("file://"))

    @contextmanager
    def _locked(self, key: BatchKey, *, seconds: float = LOCK_SECONDS) -> Iterator[None]:
        path = self._files.root / "_locks" / f"lane={key.lane}.batch_id={key.id}.lock"
        with reporting("lock", key):
            check_no_link(self._files.root, path)
            with locked(path, seconds=seconds):
                yield


def _told(batch: BatchIdentity, epoch: int, *, is_replay: bool) -> ForeachBatch:
    return ForeachBatch(
        key=batch.key, checkpoint=batch.checkpoint, pipeline=batch.pipeline, epoch=epoch, is_replay=is_replay
    )
