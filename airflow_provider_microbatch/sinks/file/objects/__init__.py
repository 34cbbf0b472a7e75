"""A table of files in an object store, where nothing can be renamed.

::

    <table>/_symlink_format_manifest/lane=live/batch_id=7/manifest  for readers: the places of the files of batch 7
    <table>/_batches/lane=live/batch_id=7/<checkpoint>.2/…          written by attempt 2, never moved
    <table>/_batches/lane=live/batch_id=7/<checkpoint>.2.<number>/… the same, joined by a compaction
    <table>/_index/lane=live/00000000000000000007                   batch 7 was about to be published, at least
    <table>/_staging/<checkpoint>/lane=live/batch_id=7/attempt=2    a mark: attempt 2 is written, and not published yet
    <table>/_replaced/<checkpoint>/lane=live/batch_id=7/…           a mark: the attempt was replaced, or is about to be
    <table>/_fenced/<checkpoint>/lane=live/batch_id=7.attempt=1     a mark: tells the Spark of attempt 1 to end
    <table>/_nothing/<number>.json                                  a file of no rows, of a batch that was taken out

A batch is published by one conditional put of its manifest: on the condition that there is none yet, or that the
manifest is unchanged since it was read. All names begin with an underscore, so that a reader that lists the folder as
if it were a table finds nothing in it, rather than the rows of all attempts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.connections import Connect
from airflow_provider_microbatch.exceptions import PublishConflictError, SinkError
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.runtime.layout import MANIFEST
from airflow_provider_microbatch.runtime.object_table import is_nothing
from airflow_provider_microbatch.sinks import Compacted, Compaction, ExpectedBatch, Manifest
from airflow_provider_microbatch.sinks.file.compacting import joining_of
from airflow_provider_microbatch.sinks.file.objects import nothing
from airflow_provider_microbatch.sinks.file.objects.compacting import ObjectCompacting
from airflow_provider_microbatch.sinks.file.objects.layout import REPLACED, Written
from airflow_provider_microbatch.sinks.file.objects.published import Manifests, Published
from airflow_provider_microbatch.sinks.file.objects.staged import StagedInObjects
from airflow_provider_microbatch.sinks.file.report import differing
from airflow_provider_microbatch.stores.object_store.address import Address

if TYPE_CHECKING:
    from airflow_provider_microbatch.sinks.file import FileSink

_TRIES = 20


class OpenObjectTable(StagedInObjects):
    """A table in an object store, opened: the operations that the orchestrator calls.

    :param sink: definition of the table.
    :param address: address of the table.
    :param connect: finds the table's connection, for Spark.
    """

    def __init__(self, sink: FileSink, address: Address, *, connect: Connect) -> None:
        super().__init__(address, connect=connect, packages=sink.packages)
        self._sink = sink
        self._manifests = Manifests(
            self._store, self._bucket, top=f"s3://{address.bucket}/{address.prefix}", format=sink.format
        )

    @property
    def definition(self) -> FileSink:
        return self._sink

    def stage(self, batch: BatchIdentity, epoch: int) -> Stage:
        return self._stage(
            Written.by(batch, epoch),
            "airflow_provider_microbatch.runtime.write:write",
            {"format": self._sink.format, "options": dict(self._sink.options)},
        )

    def contains(self, batch: ExpectedBatch) -> Manifest | None:
        with self._telling("look for", batch.key):
            return self._found(self._manifests.look(batch.key), batch)

    def publish(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        return self._put(batch, epoch, replaces=False)

    def replace(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        return self._put(batch, epoch, replaces=True)

    def withdraw(self, batch: ExpectedBatch, epoch: int) -> bool:
        key = batch.key
        with self._telling("withdraw", key):
            for _ in range(_TRIES):
                before = self._manifests.look(key)
                current = self._found(before, batch)
                if current is None:
                    return False
                if current.epoch != epoch:
                    raise SinkError(
                        f"batch {key} of {self.location()} is attempt {current.epoch}'s, not {epoch}'s: replaced "
                        "meanwhile. Nothing was taken out; run the command again."
                    )
                self._note_replaced(before, batch)
                if self._manifests.withdraw(before):
                    return True
        raise self._outrun(key)

    def drop_stage(self, batch: BatchIdentity, epoch: int) -> bool:
        written = Written.by(batch, epoch)
        with self._telling("drop a stage of", batch.key):
            if not self._stages.is_there(written) and not self._stages.is_any(written):
                self._stages.forget(written)
                return False
            had_begun = bool(self._stages.give_up(written))
            # Only after the mark: a publisher has set its own mark earlier, or is refused.
            if not self._make_unpublishable(written, had_begun=had_begun) or self._was_replaced(written):
                self._stages.forget(written)
                return False
            self._stages.remove(written)
            self._stages.forget(written)
        return True

    def drop_replaced(self, checkpoint: str, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        found = []
        with self._telling("remove replaced output"):
            folder = Written.marks(REPLACED, checkpoint)
            for mark in self._old(folder, older_seconds):
                written = Written.at(mark.removeprefix(f"{folder}/"))
                if written is None or not self._is_out(written, older_seconds):
                    continue
                if not dry_run:
                    if written.joined and not self._is_given_up(written):
                        continue
                    self._stages.remove(written)
                    self._store.delete_many([mark])
                found.append(f"{self.location()}/{written.folder}")
        return found

    def compact(self, wanted: Compaction) -> Compacted:
        refused = self._sink.not_compactable()
        if refused is not None:
            raise SinkError(f"{self.location()} cannot be compacted: {refused}.")
        with self._telling("compact batches"):
            keys = [BatchKey(lane, id) for lane in self._manifests.lanes() for id in sorted(self._manifests.ids(lane))]
            return ObjectCompacting(
                self._store, self._manifests, self._stages, joining_of(self._sink), self._manifest, self._data
            ).compact(wanted, keys)

    def stages(self, checkpoint: str) -> list[tuple[BatchKey, int]]:
        with self._telling("list the stages"):
            found = [one for one in self._stages.all(checkpoint) if self._manifests.look(one.key).written != one]
        return sorted((one.key, one.epoch) for one in found)

    def batches(self, lane: str, tables: KnownTables) -> list[int]:
        with self._telling("list the batches"):
            return sorted(self._manifests.ids(lane))

    def batches_after(self, lane: str, number: int, tables: KnownTables) -> Iterator[int]:
        with self._telling("list the batches"):
            yield from self._manifests.ids_after(lane, number)

    def lanes(self, tables: KnownTables) -> list[str]:
        with self._telling("list the lanes"):
            return self._manifests.lanes()

    def published(self, lane: str | None = None) -> Iterator[tuple[BatchKey, str]]:
        """Batches that are in now, with the addresses of their files; of one lane, or of all."""
        with self._telling("list the files"):
            for one in self._manifests.all(lane):
                addresses = [
                    self._manifests.address(one.written, file) for file in one.files if one.written is not None
                ]
                yield from ((one.key, address) for address in addresses if not is_nothing(address))

    def damage(self, batch: ExpectedBatch, found: Manifest) -> str | None:
        with self._telling("look at", batch.key):
            published = self._manifests.look(batch.key)
            if published.written is None:
                return "it is gone"
            if set(published.files) != set(_named(found, self._sink.format)):
                return "its manifest for readers does not name the files that were written"
            return differing(self._data(published.written, found), found)

    def strays(self, tables: KnownTables) -> list[str]:
        with self._telling("list"):
            shown = (name for name in self._store.list("") if not name.startswith(("_", ".")))
            return [
                *(f"{self.location()}/{name} is no part of the table" for name in shown),
                *(f"{self.location()}/{path} is no batch's manifest" for path in self._manifests.odd()),
            ]

    def _put(self, batch: ExpectedBatch, epoch: int, *, replaces: bool) -> Manifest:
        """Put the manifest that names the attempt's files, or find that some attempt's files are published."""
        key, own = batch.key, Written.by(batch.staged, epoch)
        with self._telling("replace" if replaces else "publish", key):
            for _ in range(_TRIES):
                before = self._manifests.look(key)
                current = self._found(before, batch)
                if current is not None and self._stands(current, epoch, replaces=replaces):
                    if before.written == own:
                        self._stages.forget(own)
                    return current
                # After the manifest was read: see `stages`.
                staged = self._complete_stage(batch, epoch)
                if current is not None:
                    self._note_replaced(before, batch)
                if self._manifests.put(before, own, _named(staged, self._sink.format)):
                    self._stages.forget(own)
                    return staged
        raise self._outrun(key)

    def _found(self, published: Published, batch: ExpectedBatch) -> Manifest | None:
        """:raises ForeignBatchError: if other output is at the batch's place."""
        if published.written is None:
            return None
        found = self._manifest(published.written)
        if found is None or found.epoch != published.written.epoch:
            raise SinkError(
                f"batch {batch.key} is in {self.location()}, and {published.written.folder}/{MANIFEST}, which tells "
                "whose it is, is gone or another one's. Bring the objects back, or take the batch's manifest out of "
                "the table; then run the batch again."
            )
        return batch.check(found, where=self.location())

    def _stands(self, current: Manifest, epoch: int, *, replaces: bool) -> bool:
        """Whether the published output stays.

        :raises PublishConflictError: if a later attempt than this replay is published.
        """
        if replaces and current.epoch > epoch:
            raise PublishConflictError(
                f"batch {current.key}: attempt {current.epoch} is published, which is later than attempt {epoch}. "
                "Nothing was replaced."
            )
        return not replaces or current.epoch == epoch

    def _complete_stage(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        own = super()._complete_stage(batch, epoch)
        if not own.files:
            self._store.put_if_absent(
                f"{Written.by(batch.staged, epoch).folder}/{nothing.NAME}.{self._sink.format}",
                nothing.of_format(self._sink.format),
            )
        return own

    def _data(self, written: Written, manifest: Manifest) -> Mapping[str, int]:
        """The files of an attempt that readers may be shown, with their sizes."""
        beside = {f"{nothing.NAME}.{self._sink.format}"} if not manifest.files else set()
        return {path: size for path, size in super()._data(written, manifest).items() if path not in beside}

    def _make_unpublishable(self, written: Written, *, had_begun: bool) -> bool:
        """Make sure that a process which is publishing the attempt, but has not put the manifest yet, is refused.

        :return: False if the attempt is published.
        """
        for _ in range(_TRIES):
            before = self._manifests.look(written.key)
            if before.written == written:
                return False
            if not had_begun or self._manifests.touch(before):
                return True
        raise self._outrun(written.key)

    def _note_replaced(self, before: Published, batch: ExpectedBatch) -> None:
        """Note the replacement in advance, so that the replaced files are found even after a crash."""
        if before.written is not None:
            self._store.put_if_absent(before.written.replaced_mark(batch.identity.checkpoint), b"")

    def _was_replaced(self, written: Written) -> bool:
        return self._store.modified_ms(written.replaced_mark(written.checkpoint)) is not None

    def _is_out(self, written: Written, older_seconds: float) -> bool:
        """Whether an attempt's output has been out of the table for ``older_seconds``. Its mark may be older than that:
        it is set before the output is replaced."""
        published = self._manifests.look(written.key)
        if published.written == written:
            return False
        return bool(self._older([self._manifests.path(written.key)], older_seconds))

    def _is_given_up(self, written: Written) -> bool:
        """Whether joined files can be removed. Nobody knows whether the compaction that wrote them has died or sleeps,
        and it publishes on the condition that the batch's manifest is the one that it looked at: now it is another."""
        before = self._manifests.look(written.key)
        return before.written != written and self._manifests.touch(before)

    def _older(self, paths: Sequence[str], seconds: float) -> list[str]:
        now_ms = self._store.now_ms()
        modified = {path: self._store.modified_ms(path) for path in paths}
        return [path for path, at in modified.items() if at is None or now_ms - at >= seconds * 1000]

    def _outrun(self, key: BatchKey) -> SinkError:
        return SinkError(
            f"the manifest of batch {key} of {self.location()} is changed by others all the time. Nothing was changed; "
            "run the batch again."
        )


def _named(manifest: Manifest, format: str) -> list[str]:
    """The files that readers are shown of an attempt."""
    return sorted(manifest.files) or [f"{nothing.NAME}.{format}"]
