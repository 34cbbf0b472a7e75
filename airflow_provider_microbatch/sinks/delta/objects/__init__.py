"""A Delta table in an object store, where nothing can be renamed.

::

    <table>/_delta_log/…                                    the table's log, which readers look at
    <table>/microbatch/live/7/<checkpoint>.2/…              written by attempt 2, never moved
    <table>/microbatch/rest/…                               rows of others out of files that a replay took apart
    <table>/_microbatch/batches/lane=live/…7.<number>.json  the manifest of batch 7, if the log has that number
    <table>/_microbatch/_staging/<checkpoint>/lane=live/batch_id=7/attempt=2    a mark: not known to be published
    <table>/_microbatch/_fenced/<checkpoint>/lane=live/batch_id=7.attempt=1     a mark: tells the Spark of 1 to end

A batch is published by one commit of the log, as on a file system: a put of the version's entry that S3 refuses if the
version is there. No lock keeps who publishes an attempt apart from who removes it. A publisher sets the mark to
``publishing`` between its look at the log and its commit, which is for the very next version. So who removes such an
attempt sets the mark too, and then commits a version without a change: whoever looked before that is refused by the
log, and whoever looks after it by the mark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.runtime.layout import SCHEMA
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, PublishedRows, Sink, SinkContext
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.delta.change import Change, Ready
from airflow_provider_microbatch.sinks.delta.columns import Columns
from airflow_provider_microbatch.sinks.delta.log import Snapshot
from airflow_provider_microbatch.sinks.delta.objects.home import BucketHome
from airflow_provider_microbatch.sinks.delta.objects.layout import PLAIN, RECORDS, InDelta
from airflow_provider_microbatch.sinks.delta.objects.records import ObjectRecords
from airflow_provider_microbatch.sinks.delta.table import OpenDeltaTable
from airflow_provider_microbatch.sinks.file.arguments import is_object
from airflow_provider_microbatch.sinks.file.objects.layout import Written
from airflow_provider_microbatch.sinks.file.objects.staged import StagedInObjects
from airflow_provider_microbatch.sinks.placed.logged import WRITER, Published, constants_of
from airflow_provider_microbatch.sinks.placed.places import is_plain
from airflow_provider_microbatch.stores.object_store.address import Address


class OpenDeltaInBucket(StagedInObjects, OpenDeltaTable):
    """The operations that the orchestrator calls.

    :param sink: its definition.
    :param address: address of the table.
    :param context: finds the table's connection.
    """

    layout: ClassVar[type[Written]] = InDelta

    def __init__(self, sink: DeltaSink, address: Address, context: SinkContext) -> None:
        StagedInObjects.__init__(self, address, connect=context.connect, packages=sink.packages)
        home = BucketHome(self._bucket, self._store, connect=context.connect)
        OpenDeltaTable.__init__(self, sink, home, rows_are_judged=context.rows_are_judged)
        self._records: ObjectRecords = ObjectRecords(self._store.scoped(RECORDS))

    def check(self) -> None:
        super().check()
        with self._telling("read the log"):
            self._check_log()

    def stage(self, batch: BatchIdentity, epoch: int) -> Stage:
        arguments = {
            "format": "parquet",
            "partition_by": list(self._sink.partition_by),
            "options": dict(self._sink.options),
            "constants": constants_of(batch.key),
        }
        return self._stage(self.layout.by(batch, epoch), WRITER, arguments)

    def drop_stage(self, batch: BatchIdentity, epoch: int) -> bool:
        written = self.layout.by(batch, epoch)
        with self._telling("drop a stage of", batch.key):
            if not self._stages.is_marked(written):
                return self._remove_late(written)
            had_begun = self._stages.give_up(written, marked=True)
            if had_begun is None:
                return False  # it was published meanwhile, and may be replaced: versions of the log have its files
            numbers = self._numbers_of(written)
            if (had_begun or numbers) and not self._make_unpublishable(written):
                self._forget_in(written)
                return False
            self._stages.remove(written)
            for number in numbers:
                self._records.drop(written.key, number)
            self._stages.forget(written)
        return True

    def stages(self, checkpoint: str) -> list[tuple[BatchKey, int]]:
        with self._telling("list the stages"):
            found = list(self._stages.all(checkpoint))
            snapshot = self._log.open() if found else None
            return sorted(
                (one.key, one.epoch)
                for one in found
                if not self._is_in(snapshot, one) and (self._stages.is_marked(one) or not self._numbers_of(one))
            )

    def published_rows(self, batch: ExpectedBatch) -> PublishedRows:
        return replace(super().published_rows(batch), access=self._access, requires=self._requires)

    def _put(self, batch: ExpectedBatch, epoch: int, *, replaces: bool) -> Manifest:
        with self._telling("make ready for", batch.key):
            self._make_table(batch, epoch)
        return super()._put(batch, epoch, replaces=replaces)

    def _make_table(self, batch: ExpectedBatch, epoch: int) -> None:
        """Make the table without a row, if it is not there. Only what is committed behind a version can be refused.
        The checkpoint knows it by its id before it has a batch there."""
        written = self.layout.by(batch.staged, epoch)
        own, snapshot = self.manifest(batch.staged, epoch), self._log.open()
        if own is not None and snapshot is None:
            columns = self._shown(self._columns(next(self._lines(f"{written.folder}/{SCHEMA}"), None), own))
            self._log.create(
                [],
                schema=columns.schema,
                partition_by=self._sink.partition_by,
                info={},
                transactions={},
            )
            snapshot = self._log.open()
        if snapshot is not None:
            batch.tables.put_at(self.location(), snapshot.table_id)

    def is_table_of(self, before: Sink, tables: KnownTables) -> bool:
        """By the id of its log, which was copied along with it."""
        if not isinstance(before, DeltaSink) or not is_object(before.path) or self._table_id is None:
            return False
        return tables.was_at(before.location(), self._table_id)

    @cached_property
    def _table_id(self) -> str | None:
        """Asked once: no table becomes another one while a process looks at it."""
        with self._telling("tell the id"):
            snapshot = self._log.open()
        return None if snapshot is None else snapshot.table_id

    def _is_here(self, tables: KnownTables) -> bool:
        return True

    def _ready(self, batch: ExpectedBatch, epoch: int) -> Ready:
        own = self._complete_stage(batch, epoch)
        below = self.layout.by(batch.staged, epoch).folder
        return Ready(
            manifest=own,
            number=self._records.put(own),
            below=below,
            schema=next(self._lines(f"{below}/{SCHEMA}"), None),
        )

    def _batch_of(self, path: str) -> BatchKey | None:
        written = InDelta.of_file(path)
        return None if written is None else written.key

    def _number_of(self, path: str, *, maybe: int | None = None) -> int:
        written = InDelta.of_file(path)
        # One request, where a search takes a listing, and one for each attempt there was.
        if written and maybe is not None and self._written_by(self._records.get(written.key, maybe)) == written:
            return maybe
        numbers = [] if written is None else self._numbers_of(written)
        if not numbers:
            raise SinkError(f"nobody can say whose {path} of the Delta table {self._where} is: its manifest is gone")
        return numbers[0]

    def _in_place(self, ready: Ready) -> Iterator[tuple[str, str]]:
        for number, file in enumerate(sorted(ready.manifest.files)):
            now = file if is_plain(file) else f"{PLAIN}/part-{number:05}.parquet"
            if now != file:
                self._stages.copy(f"{ready.below}/{file}", f"{ready.below}/{now}")
            yield file, now

    def _data(self, written: Written, manifest: Manifest) -> Mapping[str, int]:
        return {
            path: size for path, size in super()._data(written, manifest).items() if not path.startswith(f"{PLAIN}/")
        }

    def _confirm(self, found: Published) -> None:
        """Nothing: an object is durable when its put is answered."""

    def _settle(self, found: Published) -> None:
        self._stages.forget(self._written_by(found.manifest))

    def _forget_in(self, written: Written) -> None:
        """Remove the mark of an attempt that somebody wanted to drop, and that is in."""
        self._stages.forget(written)

    def _commit_ready(
        self, snapshot: Snapshot | None, ready: Ready, columns: Columns, change: Change, batch: ExpectedBatch
    ) -> bool:
        if snapshot is None:
            raise SinkError(f"the Delta table {self._where} is gone. Nothing was published; run the batch again.")
        return super()._commit_ready(snapshot, ready, columns, change, batch)

    def _publishing(self, batch: ExpectedBatch, epoch: int) -> AbstractContextManager[None]:
        return nullcontext()

    @contextmanager
    def _telling(self, doing: str, key: BatchKey | None = None) -> Iterator[None]:
        from deltalake.exceptions import DeltaError

        try:
            with super()._telling(doing, key):
                yield
        except (DeltaError, OSError) as error:  # a part of a snapshot is read when it is first asked for
            what = f"{doing} batch {key}" if key is not None else doing
            raise SinkError(f"cannot {what} of the table {self._where}: {self._home.told(error)}") from None

    def _make_unpublishable(self, written: Written) -> bool:
        """Make sure that whoever has begun to publish the attempt, and has not committed yet, is refused.

        :return: False if the attempt is in, or has been.
        """
        for snapshot in self._log.snapshots():
            if self._is_in(snapshot, written):
                return False
            # The version alone refuses the commit. Of the batch it says nothing: one that was never in would count as
            # taken out, and rows of it that somebody has copied there as put back.
            if snapshot is None or self._log.rearrange(
                snapshot, [], info={"dropped": f"{written.key} attempt {written.epoch}"}
            ):
                # Who replaces an attempt first removes its mark: its files belong to the table's history.
                return self._stages.is_marked(written)
        raise self._outrun(written.key)

    def _is_in(self, snapshot: Snapshot | None, written: Written) -> bool:
        number = None if snapshot is None else snapshot.number(written.key)
        if number is None:
            return False
        return self._written_by(self._records.get(written.key, number)) == written

    def _remove_late(self, written: Written) -> bool:
        """Remove what a driver that nobody could stop has written after the attempt's stage was dropped. Without a mark
        files may also be those of a batch that is in, or was: readers of older versions have them."""
        if not self._stages.is_any(written) or self._numbers_of(written):
            return False
        return self._stages.remove(written)

    def _numbers_of(self, written: Written) -> list[int]:
        """Numbers of the attempt's manifest: one if the attempt is in, was in, or was about to be. Its own folder does
        not tell: VACUUM may have removed the manifest there."""
        return [number for number, found in self._records.of(written.key) if self._written_by(found) == written]

    def _written_by(self, found: Manifest) -> Written:
        """The output that a manifest lists."""
        return self.layout.by(found.identity or BatchIdentity.at(found.key), found.epoch)
