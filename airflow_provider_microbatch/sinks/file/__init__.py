"""A table of files on a local or shared POSIX file system; each batch is one folder of it.

::

    <path>/lane=live/batch_id=7/…                            published: readers list it
    <path>/_staging/<checkpoint>/lane=live/batch_id=7/attempt=2/…   written by attempt 2, hidden from readers
    <path>/_replaced/<checkpoint>/lane=live/batch_id=7/attempt=1/…  replaced by a replay; kept for its readers
    <path>/_compacted/<checkpoint>/lane=live/batch_id=7/attempt=2.<number>/…   see sinks/file/compacting.py
    <path>/_fenced/<checkpoint>/lane=live/batch_id=7.attempt=1      a file: tells the Spark of attempt 1 to end
    <path>/_table_id/<id>                                    a file: by it the table is known again

Spark, pyarrow and Hive skip folders that begin with an underscore, so they never see a stage. Publishing is one rename
of a stage that is complete and on disk. ``<checkpoint>`` is the id of the attempt's checkpoint, so that of two
checkpoints that write one table neither touches the other's files; attempts of versions before identities have their
folders without it.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.exceptions import (
    DefinitionError,
    PublishConflictError,
    SinkError,
)
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.settings import make_private_folder
from airflow_provider_microbatch.sinks import (
    ExpectedBatch,
    Manifest,
    OpenSink,
    PublishedRows,
    SelfContained,
    Sink,
    SinkContext,
)
from airflow_provider_microbatch.sinks.compaction import Compacted, Compaction
from airflow_provider_microbatch.sinks.file.arguments import (
    RESERVED_COLUMNS,
    address_of,
    check_options,
    check_path,
    coordinates,
    is_object,
    lies_in,
    local_path,
    partition_columns,
)
from airflow_provider_microbatch.sinks.file.compacting import COMPACTED, Folders, joining_of, left_by_compactions
from airflow_provider_microbatch.sinks.file.lock import TABLE_SECONDS, locked
from airflow_provider_microbatch.sinks.file.old import drop_old
from airflow_provider_microbatch.sinks.file.posix import (
    check_no_link,
    exchange,
    make_folders,
    rename_new,
    sync,
    sync_tree,
    write_mark,
)
from airflow_provider_microbatch.sinks.file.present import all_there
from airflow_provider_microbatch.sinks.file.removal import folder_of, remove, remove_aside
from airflow_provider_microbatch.sinks.file.report import check_files, differences, read_error, read_manifest, reporting
from airflow_provider_microbatch.sinks.file.strays import check_of_files, strays
from airflow_provider_microbatch.sinks.file.subtasks import FileSubtasks
from airflow_provider_microbatch.sinks.table_folder import TableFolder, check_file_system, check_writable

log = logging.getLogger(__name__)

FORMATS = ("parquet", "json", "csv", "orc")
STAGING = "_staging"
"""Folder of the attempts' stages; it exists from the first attempt on."""

_STAGE = re.compile(r"lane=(?P<lane>[^/]+)/batch_id=(?P<id>\d+)/attempt=(?P<epoch>\d+)(\.dropped-\w+)?")
_FENCED = "a later attempt has taken this one's place\n"


@dataclass(frozen=True)
class FileSink(SelfContained):
    """Publishes each batch as the folder ``lane=<lane>/batch_id=<N>`` of a table of files.

    :param path: the table: an absolute local path or ``file:`` URL. As in Spark, a URL is not percent-decoded. Or a
        folder of a bucket, ``s3://conn_id@bucket/folder``, where a batch is published by a manifest: only a reader that
        uses these manifests sees rows (docs/object-stores.md).
    :param format: ``parquet``, ``json``, ``csv`` or ``orc``.
    :param partition_by: columns whose values become folders below a batch's folder. Not supported in a bucket.
    :param options: options of Spark's writer, such as ``{"compression": "zstd"}``.
    :param packages: for a table in a bucket: Maven coordinates of Hadoop's connector for it, for spark-submit. None:
        the connector that belongs to the installed PySpark; empty: Spark already has a connector.
    :raises DefinitionError: for a wrong type or value, naming the field.
    """

    path: str
    _: KW_ONLY
    format: str = "parquet"
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    packages: Sequence[str] | None = None

    def __post_init__(self) -> None:
        # A malformed address may contain a password, and is not repeated.
        where = f"FileSink({str(address_of(self.path)) if is_object(self.path) else self.path!r})"
        if not is_object(self.path):
            check_path(self.path, where=where)
        if self.format not in FORMATS:
            raise DefinitionError(f"{where}: format {self.format!r} is none of {', '.join(FORMATS)}.")
        object.__setattr__(self, "partition_by", partition_columns(self.partition_by, where=where))
        check_options(self.options, where=where)
        object.__setattr__(self, "packages", coordinates(self.packages, where=where))
        if self.partition_by and is_object(self.path):
            raise DefinitionError(
                f"{where}: partition_by is not for a table in a bucket, whose readers take a batch for one partition "
                "of files that have all columns. Leave it out, or use DeltaSink or IcebergSink."
            )

    def open(self, context: SinkContext) -> OpenSink:
        if not is_object(self.path):
            return self
        from airflow_provider_microbatch.sinks.file.objects import OpenObjectTable

        return OpenObjectTable(self, address_of(self.path), connect=context.connect)

    @property
    def root(self) -> Path:
        """The table's folder."""
        return local_path(self.path)

    @property
    def folder(self) -> TableFolder:
        """The table's folder, as a folder that may be away."""
        return TableFolder(self.root)

    def location(self) -> str:
        if is_object(self.path):
            return f"s3a://{address_of(self.path).place}"
        return self.folder.location

    @property
    def remembers_batches(self) -> bool:
        """True in a bucket: manifests there are never removed, and a different bucket looks like an empty table."""
        return is_object(self.path)

    def check(self) -> None:
        check_writable(self.root)
        check_file_system(self.root)
        check_of_files(self.root)

    def make_ready(self, tables: KnownTables, *, is_there: Callable[[], bool]) -> None:
        """Make the folder of the stages private. Spark sets the modes of their files by its umask, and a publish moves
        the files unchanged: published files are as readable as the table is."""
        check_of_files(self.root)
        with reporting("make ready", self.root):
            self.folder.make_known(tables, is_there=is_there)
            make_folders(self.root)
            check_no_link(self.root, self.root / STAGING)
            make_private_folder(self.root / STAGING)

    def stage(self, batch: BatchIdentity, epoch: int) -> Stage:
        address = f"file://{self._stage_path(batch, epoch)}"
        return Stage(
            writer="airflow_provider_microbatch.runtime.write:write",
            arguments={
                "path": address,
                "format": self.format,
                "partition_by": list(self.partition_by),
                "options": dict(self.options),
            },
            report=address,
            reserved_columns=RESERVED_COLUMNS,
            fence=f"file://{self._fence_path(batch, epoch)}",
        )

    @property
    def subtasks(self) -> FileSubtasks:
        return FileSubtasks(
            self.root, staging=lambda owner: _of_checkpoint(self.root / STAGING, owner), whole=self.stage
        )

    def manifest(self, batch: BatchIdentity, epoch: int) -> Manifest | None:
        with reporting("read the stage of", batch.key):
            found = read_manifest(self._stage_path(batch, epoch), batch.key)
        # If a replay was interrupted between its exchange and its clean-up, the stage's folder holds the older output.
        return found if found is not None and found.epoch == epoch else None

    def failure(self, batch: BatchIdentity, epoch: int) -> Mapping[str, Any] | None:
        with reporting("read the stage of", batch.key):
            return read_error(self._stage_path(batch, epoch))

    def contains(self, batch: ExpectedBatch) -> Manifest | None:
        key, target = batch.key, self.published_path(batch.key)
        with reporting("look for", key):
            if not self.folder.is_here(batch.tables) or not os.path.lexists(target):
                return None
            found = read_manifest(target, key)
            if found is None:
                raise SinkError(
                    f"{target} exists, but has no manifest: this package did not publish it. Move it away, then run "
                    f"batch {key} again."
                )
            own = batch.check(found, where=self.location())
            # A commit entry relies on this answer. If the publisher died right after its rename, only this makes the
            # rename survive a power cut.
            sync(target.parent)
        return own

    @property
    def only_folder(self) -> Path | None:
        return None if is_object(self.path) else self.root

    def not_compactable(self) -> str | None:
        return None if self.format != "orc" else "files of orc are not joined: rewrite them by Spark, or use parquet"

    def is_same_place(self, other: Sink) -> bool:
        if not isinstance(other, FileSink) or is_object(self.path) or is_object(other.path):
            return super().is_same_place(other)
        return self.folder.is_same_place(other.folder)

    def is_table_of(self, before: Sink, tables: KnownTables) -> bool:
        if not isinstance(before, FileSink) or is_object(before.path):
            return False
        return self.folder.is_table_of(before.folder, tables)

    def would_show(self, location: str) -> bool:
        if is_object(self.path):
            return lies_in(location, address_of(self.path))
        return self.folder.would_show(location)

    def unlike(self, before: Sink) -> str | None:
        if not isinstance(before, FileSink):
            return None
        for what in ("format", "partition_by"):
            old, new = getattr(before, what), getattr(self, what)
            if old != new:
                return f"the table {self.location()} has batches that were written with {what}={old!r}, not {new!r}."
        return None

    def seems_away(self, tables: KnownTables) -> str | None:
        return self.folder.seems_away(tables)

    def batches(self, lane: str, tables: KnownTables) -> list[int]:
        with reporting("list", self.root):
            return self.published_ids(lane) if self.folder.is_here(tables) else []

    def published_ids(self, lane: str) -> list[int]:
        """Like :meth:`batches`, but of the folder as it is, without a check that the table is here."""
        with reporting("list", self.root):
            names = [path.name for path in (self.root / f"lane={lane}").glob("batch_id=*")]
        ids = [name.removeprefix("batch_id=") for name in names]
        return sorted(int(text) for text in ids if text.isascii() and text.isdecimal() and str(int(text)) == text)

    def published_rows(self, batch: ExpectedBatch) -> PublishedRows:
        def look() -> Manifest:
            found = self.contains(batch)
            if found is None:
                raise SinkError(f"batch {batch.key} is not in {self.location()}.")
            return found

        return PublishedRows(
            format=self.format,
            base=f"file://{self.root}",
            # Not the folder: a batch without rows has no file, and Spark could tell no format of its folder.
            paths=tuple(f"file://{path}" for path in all_there(self.published_path(batch.key), look)),
            options=dict(self.options),
        )

    def damage(self, batch: ExpectedBatch, found: Manifest) -> str | None:
        with reporting("look at", batch.key):
            return differences(self.published_path(batch.key), found)

    def strays(self, tables: KnownTables) -> list[str]:
        with reporting("list", self.root):
            return list(strays(self.root)) if self.folder.is_here(tables) else []

    def lanes(self, tables: KnownTables) -> list[str]:
        with reporting("list", self.root):
            return self.published_lanes() if self.folder.is_here(tables) else []

    def published_lanes(self) -> list[str]:
        """Like :meth:`lanes`, but of the folder as it is, without a check that the table is here."""
        with reporting("list", self.root):
            return sorted(path.name.removeprefix("lane=") for path in self.root.glob("lane=*"))

    def publish(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        found = self.contains(batch)
        if found is not None:
            return found
        key = batch.key
        stage, target = self._stage_path(batch.staged, epoch), self.published_path(key)
        with reporting("publish", key):
            own = self._complete_stage(batch, epoch)
            make_folders(target.parent)
            published = rename_new(stage, target)
            if published:
                sync(target.parent)
                self._forget(stage)
                return own
        winner = self.contains(batch)
        if winner is None:
            raise SinkError(f"{target} came and went while batch {key} was published. Run the batch again.")
        return winner

    def replace(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        key = batch.key
        stage, target = self._stage_path(batch.staged, epoch), self.published_path(key)
        if self.contains(batch) is None:
            return self.publish(batch, epoch)
        with reporting("replace", key), self._locked(key):
            current = self.contains(batch)
            if current is None:
                raise SinkError(f"{target} was removed while batch {key} was replaced. Run the batch again.")
            if current.epoch >= epoch:
                return self._replaced_already(batch, current, epoch)
            own = self._complete_stage(batch, epoch)
            if not exchange(stage, target):
                raise SinkError(
                    f"the file system of {self.root} cannot exchange two folders in one step (Linux renameat2), so "
                    f"readers could find batch {key} missing. Nothing was replaced; use a local file system."
                )
            sync(target.parent)
            sync(stage.parent)
            self._keep_displaced(batch.identity, stage)
        return own

    def withdraw(self, batch: ExpectedBatch, epoch: int) -> bool:
        key, target = batch.key, self.published_path(batch.key)
        if self.contains(batch) is None:
            return False
        with reporting("withdraw", key), self._locked(key):
            current = self.contains(batch)
            if current is None:
                return False
            if current.epoch != epoch:
                raise SinkError(
                    f"batch {key} of {self.root} is attempt {current.epoch}'s, not {epoch}'s: replaced meanwhile. "
                    "Nothing was taken out; run the command again."
                )
            kept = self.replaced_path(batch.identity) / f"attempt={epoch}"
            check_no_link(self.root, kept.parent)
            make_folders(kept.parent)
            while not rename_new(target, kept):
                kept = kept.with_name(f"attempt={epoch}.withdrawn-{uuid.uuid4().hex}")
            sync(target.parent)
            sync(kept.parent)
        return True

    def drop_stage(self, batch: BatchIdentity, epoch: int) -> bool:
        stage = self._stage_path(batch, epoch)
        with reporting("drop a stage of", batch.key):
            check_no_link(self.root, stage.parent)
            left = list(stage.parent.glob(f"{stage.name}.dropped-*"))
            for rest in left:
                remove(self.root, rest)
            if not os.path.lexists(stage):
                self._forget(stage)
                return bool(left)
            displaced = None if stage.is_symlink() else self._manifest_of_any(stage, batch.key)
            if displaced is not None and not displaced.is_of(batch, epoch):
                self._keep_displaced(batch, stage)
            else:
                remove_aside(self.root, stage)
            self._forget(stage)
        return True

    def fence(self, batch: BatchIdentity, epoch: int, *, by: str) -> None:
        path = self._fence_path(batch, epoch)
        if self.folder.is_empty():
            return  # no Spark can be writing here, and a folder where a table is to be mounted stays unchanged
        with reporting("fence an attempt of", batch.key), folder_of(self.root, path, make=True) as held:
            # The reason may come from a checkpoint that others can write: it goes to the log, and into no file here.
            write_mark(path.name, _FENCED, dir_fd=held)
        log.info("%s: %s", path, by)

    def drop_fences(self, checkpoint: str, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        with reporting("remove old fences of", self.root):
            places = self._places("_fenced", checkpoint)
            return drop_old(self.root, places, "lane=*/batch_id=*.attempt=*", older_seconds, dry_run=dry_run)

    def drop_replaced(self, checkpoint: str, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        compacted = self._places(COMPACTED, checkpoint)
        left = left_by_compactions(self.root, compacted, dry_run=dry_run)
        with reporting("remove replaced output of", self.root), left as places:
            places = [*self._places("_replaced", checkpoint), *places]
            return drop_old(self.root, places, "lane=*/batch_id=*/attempt=*", older_seconds, dry_run=dry_run)

    def compact(self, wanted: Compaction) -> Compacted:
        with reporting("compact", self.root):
            lanes = self.published_lanes() if self.folder.is_here(wanted.tables) else []
            batches = (BatchKey(lane, number) for lane in lanes for number in self.published_ids(lane))
            return Folders(self.root, joining_of(self), self._locked).compact(wanted, batches)

    def stages(self, checkpoint: str) -> list[tuple[BatchKey, int]]:
        root = _of_checkpoint(self.root / STAGING, checkpoint)
        with reporting("list the stages of", self.root):
            names = [path.relative_to(root).as_posix() for path in root.glob("lane=*/batch_id=*/attempt=*")]
        found = set()
        for match in filter(None, map(_STAGE.fullmatch, names)):
            try:
                found.add((BatchKey(match["lane"], int(match["id"])), int(match["epoch"])))
            except (DefinitionError, ValueError):
                continue  # a folder of another program
        return sorted(found)

    def _complete_stage(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        """The manifest of a stage that is whole, of this plan and on disk."""
        stage, key = self._stage_path(batch.staged, epoch), batch.key
        self.subtasks.assemble(batch.staged, epoch)
        own = self.manifest(batch.staged, epoch)
        if own is None:
            raise SinkError(f"batch {key} attempt {epoch} has no complete stage at {stage}. Run the batch again.")
        batch.check_stage(own, where=str(stage))
        check_files(stage, own)
        sync_tree(stage)
        return own

    def _replaced_already(self, batch: ExpectedBatch, current: Manifest, epoch: int) -> Manifest:
        if current.epoch > epoch:
            raise PublishConflictError(
                f"batch {batch.key}: attempt {current.epoch} is published, which is later than attempt {epoch}. "
                "Nothing was replaced."
            )
        stage = self._stage_path(batch.staged, epoch)
        if stage.exists():
            self._keep_displaced(batch.identity, stage)
        return current

    def _keep_displaced(self, batch: BatchIdentity, stage: Path) -> None:
        """Move output that a replay has replaced to ``_replaced``, where the janitor keeps it for its grace period: a
        reader that had opened the output can read it to the end."""
        displaced = self._manifest_of_any(stage, batch.key)
        if displaced is None:
            return
        kept = self.replaced_path(batch) / f"attempt={displaced.epoch}"
        check_no_link(self.root, kept.parent)
        make_folders(kept.parent)
        if not rename_new(stage, kept):
            remove(self.root, stage)
        self._forget(stage)

    @staticmethod
    def _manifest_of_any(stage: Path, key: BatchKey) -> Manifest | None:
        try:
            return read_manifest(stage, key)
        except SinkError:
            return None  # torn: such a folder was never published

    @staticmethod
    def _forget(stage: Path) -> None:
        """Remove the batch's staging folder if this was its last stage. Lane folders stay: Spark may be creating
        another batch's stage in them at this moment."""
        try:
            stage.parent.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise

    def _stage_path(self, batch: BatchIdentity, epoch: int) -> Path:
        staging = _of_checkpoint(self.root / STAGING, batch.checkpoint)
        return staging / f"lane={batch.key.lane}" / f"batch_id={batch.key.id}" / f"attempt={epoch}"

    def _fence_path(self, batch: BatchIdentity, epoch: int) -> Path:
        fenced = _of_checkpoint(self.root / "_fenced", batch.checkpoint)
        return fenced / f"lane={batch.key.lane}" / f"batch_id={batch.key.id}.attempt={epoch}"

    def _places(self, folder: str, checkpoint: str) -> list[Path]:
        # Folders of versions before identities do not say whose attempts they hold; all of them are old enough.
        return sorted({self.root / folder, _of_checkpoint(self.root / folder, checkpoint)})

    def published_path(self, key: BatchKey) -> Path:
        """Folder of the batch, once it is published."""
        return self.root / f"lane={key.lane}" / f"batch_id={key.id}"

    def replaced_path(self, batch: BatchIdentity) -> Path:
        """Folder of the batch's output that later attempts have replaced."""
        replaced = _of_checkpoint(self.root / "_replaced", batch.checkpoint)
        return replaced / f"lane={batch.key.lane}" / f"batch_id={batch.key.id}"

    @contextmanager
    def _locked(self, key: BatchKey) -> Iterator[None]:
        """Hold the batch's lock, which is the same for all processes that change what readers see of the batch."""
        path = self.root / "_replaced" / f"lane={key.lane}" / f"batch_id={key.id}.lock"
        check_no_link(self.root, path)
        with locked(path, seconds=TABLE_SECONDS):
            yield


def _of_checkpoint(folder: Path, checkpoint: str) -> Path:
    return folder / checkpoint if checkpoint else folder
