"""A table of files on a local or shared POSIX file system; each batch is one folder of it.

::

    <path>/lane=live/batch_id=7/…                            published: what readers list
    <path>/_staging/lane=live/batch_id=7/attempt=2/…         written by attempt 2, seen by nobody
    <path>/_replaced/lane=live/batch_id=7/attempt=1/…        put out by a replay; kept for readers that are still at it
    <path>/_fenced/lane=live/batch_id=7.attempt=1            a file: tells the Spark of attempt 1 to end

Spark, pyarrow and Hive skip folders that begin with an underscore, so they never see a stage. Publishing is one rename
of a stage that is complete and on disk.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import DefinitionError, MicroBatchError, PublishConflictError, SinkError
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.sinks import Manifest, Sink
from airflow_provider_microbatch.sinks.file_posix import exchange, locked, make_folders, rename_new, sync, sync_tree
from airflow_provider_microbatch.sinks.file_report import check_files, read_error, read_manifest

FORMATS = ("parquet", "json", "csv", "orc")
RESERVED_COLUMNS = ("lane", "batch_id")

_STAGE = re.compile(r"lane=(?P<lane>[^/]+)/batch_id=(?P<id>\d+)/attempt=(?P<epoch>\d+)(\.dropped-\w+)?")
_GLOB = "*?[]{}\\"
_DROP_TRIES = 5


@dataclass(frozen=True)
class FileSink(Sink):
    """Publishes each batch as the folder ``lane=<lane>/batch_id=<N>`` of a table of files.

    :param path: the table: an absolute local path or ``file:`` URL. As in Spark, a URL is not percent-decoded.
    :param format: ``parquet``, ``json``, ``csv`` or ``orc``.
    :param partition_by: columns whose values become folders below a batch's folder.
    :param options: options of Spark's writer, such as ``{"compression": "zstd"}``.
    :raises DefinitionError: for a wrong type or value, naming the field.
    """

    path: str
    _: KW_ONLY
    format: str = "parquet"
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        root = _local_path(self.path)
        where = f"FileSink({self.path!r})"
        if not root.startswith("/"):
            raise DefinitionError(f"{where}: path must be absolute: a task runs in a working directory of its own.")
        if any(sign in _GLOB or not sign.isprintable() for sign in root):
            raise DefinitionError(f"{where}: path must not have {_GLOB} (globs to Spark) or control characters.")
        if self.format not in FORMATS:
            raise DefinitionError(f"{where}: format {self.format!r} is none of {', '.join(FORMATS)}.")
        given: object = self.partition_by
        if isinstance(given, str):
            raise DefinitionError(f"{where}: partition_by must be a list of columns, not one text.")
        object.__setattr__(self, "partition_by", tuple(self.partition_by))
        for column in self.partition_by:
            if not isinstance(column, str) or not column:
                raise DefinitionError(f"{where}: partition_by: {column!r} is no column name.")
            if column.casefold() in RESERVED_COLUMNS:
                raise DefinitionError(f"{where}: partition_by: {column!r} is a folder of ours; rename the column.")
        for key, value in self.options.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise DefinitionError(f"{where}: options {key!r}: {value!r} must be text on both sides.")

    @property
    def root(self) -> Path:
        """The table's folder."""
        return Path(_local_path(self.path))

    def location(self) -> str:
        return f"file://{self.root}"

    def check(self) -> None:
        nearest = next(folder for folder in (self.root, *self.root.parents) if folder.exists())
        if not nearest.is_dir():
            raise SinkError(f"the table {self.root} cannot be written: {nearest} is not a folder.")
        if not os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
            raise SinkError(f"the table {self.root} cannot be written: no permission to read and write {nearest}.")

    def stage(self, key: BatchKey, epoch: int) -> Stage:
        address = f"file://{self._stage_path(key, epoch)}"
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
            fence=f"file://{self._fence_path(key, epoch)}",
        )

    def manifest(self, key: BatchKey, epoch: int) -> Manifest | None:
        with _reporting("read the stage of", key):
            found = read_manifest(self._stage_path(key, epoch), key)
        # Where a replay was cut off between its exchange and its clean-up, the older output lies here.
        return found if found is not None and found.epoch == epoch else None

    def failure(self, key: BatchKey, epoch: int) -> Mapping[str, Any] | None:
        with _reporting("read the stage of", key):
            return read_error(self._stage_path(key, epoch))

    def contains(self, key: BatchKey) -> Manifest | None:
        target = self._target_path(key)
        with _reporting("look for", key):
            if not os.path.lexists(target):
                return None
            found = read_manifest(target, key)
            if found is None:
                raise SinkError(
                    f"{target} exists, but has no manifest: this package did not publish it. Move it away, then run "
                    f"batch {key} again."
                )
            # A commit entry rests on this answer. If the publisher died right after its rename, only this makes the
            # rename last through a power cut.
            sync(target.parent)
        return found

    def publish(self, key: BatchKey, epoch: int) -> Manifest:
        found = self.contains(key)
        if found is not None:
            return found
        stage, target = self._stage_path(key, epoch), self._target_path(key)
        with _reporting("publish", key):
            own = self._complete_stage(key, epoch)
            make_folders(target.parent)
            published = rename_new(stage, target)
            if published:
                sync(target.parent)
                self._forget(stage)
                return own
        winner = self.contains(key)
        if winner is None:
            raise SinkError(f"{target} came and went while batch {key} was published. Run the batch again.")
        return winner

    def replace(self, key: BatchKey, epoch: int) -> Manifest:
        stage, target = self._stage_path(key, epoch), self._target_path(key)
        if self.contains(key) is None:
            return self.publish(key, epoch)
        with _reporting("replace", key), locked(self._replaced_path(key).with_name(f"batch_id={key.id}.lock")):
            current = self.contains(key)
            if current is None:
                raise SinkError(f"{target} was removed while batch {key} was replaced. Run the batch again.")
            if current.epoch >= epoch:
                return self._replaced_already(current, epoch)
            own = self._complete_stage(key, epoch)
            if not exchange(stage, target):
                raise SinkError(
                    f"the file system of {self.root} cannot exchange two folders in one step (Linux renameat2), so "
                    f"readers could find batch {key} missing. Nothing was replaced; use a local file system."
                )
            sync(target.parent)
            sync(stage.parent)
            self._keep_displaced(key, stage)
        return own

    def withdraw(self, key: BatchKey, epoch: int) -> bool:
        target = self._target_path(key)
        if self.contains(key) is None:
            return False
        with _reporting("withdraw", key), locked(self._replaced_path(key).with_name(f"batch_id={key.id}.lock")):
            current = self.contains(key)
            if current is None:
                return False
            if current.epoch != epoch:
                raise SinkError(
                    f"batch {key} of {self.root} is attempt {current.epoch}'s, not {epoch}'s: replaced meanwhile. "
                    "Nothing was taken out; run the command again."
                )
            kept = self._replaced_path(key) / f"attempt={epoch}"
            make_folders(kept.parent)
            while not rename_new(target, kept):
                kept = kept.with_name(f"attempt={epoch}.withdrawn-{uuid.uuid4().hex}")
            sync(target.parent)
            sync(kept.parent)
        return True

    def drop_stage(self, key: BatchKey, epoch: int) -> bool:
        stage = self._stage_path(key, epoch)
        with _reporting("drop a stage of", key):
            left = list(stage.parent.glob(f"{stage.name}.dropped-*"))
            for rest in left:
                _remove(rest)
            if not os.path.lexists(stage):
                self._forget(stage)
                return bool(left)
            displaced = self._manifest_of_any(stage, key)
            if displaced is not None and displaced.epoch != epoch:
                self._keep_displaced(key, stage)
            else:
                _remove_aside(stage)
            self._forget(stage)
        return True

    def fence(self, key: BatchKey, epoch: int, *, by: str) -> None:
        path = self._fence_path(key, epoch)
        with _reporting("fence an attempt of", key):
            make_folders(path.parent)
            path.write_text(f"{by}\n", encoding="utf-8")

    def drop_fences(self, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        with _reporting("remove old fences of", self.root):
            return self._drop_old("_fenced/lane=*/batch_id=*.attempt=*", older_seconds=older_seconds, dry_run=dry_run)

    def drop_replaced(self, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        with _reporting("remove replaced output of", self.root):
            return self._drop_old("_replaced/lane=*/batch_id=*/attempt=*", older_seconds=older_seconds, dry_run=dry_run)

    def _drop_old(self, pattern: str, *, older_seconds: float, dry_run: bool) -> list[str]:
        found = []
        for kept in sorted(self.root.glob(pattern)):
            # A rename sets the change time of what it moves: since then nobody can open it by its old name.
            if time.time() - kept.lstat().st_ctime >= older_seconds:
                found.append(str(kept))
                if dry_run:
                    continue
                if kept.is_dir():
                    _remove(kept)
                else:
                    kept.unlink(missing_ok=True)
        return found

    def stages(self) -> list[tuple[BatchKey, int]]:
        root = self.root / "_staging"
        found = set()
        for path in root.glob("lane=*/batch_id=*/attempt=*"):
            match = _STAGE.fullmatch(path.relative_to(root).as_posix())
            if match:
                try:
                    found.add((BatchKey(match["lane"], int(match["id"])), int(match["epoch"])))
                except DefinitionError:
                    continue  # a folder that somebody else put there
        return sorted(found)

    def _complete_stage(self, key: BatchKey, epoch: int) -> Manifest:
        """The manifest of a stage that is whole and on disk."""
        stage = self._stage_path(key, epoch)
        own = self.manifest(key, epoch)
        if own is None:
            raise SinkError(f"batch {key} attempt {epoch} has no complete stage at {stage}. Run the batch again.")
        check_files(stage, own)
        sync_tree(stage)
        return own

    def _replaced_already(self, current: Manifest, epoch: int) -> Manifest:
        key = current.key
        if current.epoch > epoch:
            raise PublishConflictError(
                f"batch {key}: attempt {current.epoch} is published, which is later than attempt {epoch}. Nothing was "
                "replaced."
            )
        stage = self._stage_path(key, epoch)
        if stage.exists():
            self._keep_displaced(key, stage)
        return current

    def _keep_displaced(self, key: BatchKey, stage: Path) -> None:
        """Move output that a replay has put out to ``_replaced``, where the janitor keeps it for its grace period: a
        reader that had it open reads on to the end."""
        displaced = self._manifest_of_any(stage, key)
        if displaced is None:
            return
        kept = self._replaced_path(key) / f"attempt={displaced.epoch}"
        make_folders(kept.parent)
        if not rename_new(stage, kept):
            _remove(stage)
        self._forget(stage)

    @staticmethod
    def _manifest_of_any(stage: Path, key: BatchKey) -> Manifest | None:
        try:
            return read_manifest(stage, key)
        except SinkError:
            return None  # torn: nothing that was ever published

    @staticmethod
    def _forget(stage: Path) -> None:
        """Remove the batch's staging folder if this was its last stage. Lane folders stay: Spark may just now be
        creating another batch's stage in them."""
        try:
            stage.parent.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise

    def _stage_path(self, key: BatchKey, epoch: int) -> Path:
        return self.root / "_staging" / f"lane={key.lane}" / f"batch_id={key.id}" / f"attempt={epoch}"

    def _fence_path(self, key: BatchKey, epoch: int) -> Path:
        return self.root / "_fenced" / f"lane={key.lane}" / f"batch_id={key.id}.attempt={epoch}"

    def _target_path(self, key: BatchKey) -> Path:
        return self.root / f"lane={key.lane}" / f"batch_id={key.id}"

    def _replaced_path(self, key: BatchKey) -> Path:
        return self.root / "_replaced" / f"lane={key.lane}" / f"batch_id={key.id}"


def _local_path(path: object) -> str:
    """The local path that ``path`` names.

    :raises DefinitionError: if it is on another file system.
    """
    if not isinstance(path, str) or not path:
        raise DefinitionError(f"FileSink: path must be a path or 'file:' URL, not {path!r}.")
    scheme, colon, rest = path.partition(":")
    if not colon or "/" in scheme:
        return os.path.normpath("/" + path.lstrip("/") if path.startswith("/") else path)
    if scheme != "file" or (rest.startswith("//") and not rest.startswith("///")):
        raise DefinitionError(
            f"FileSink({path!r}): only local paths and 'file:///…' URLs are supported: publishing is a rename."
        )
    return os.path.normpath("/" + rest.lstrip("/"))


def _remove_aside(stage: Path) -> None:
    """Remove a stage that its attempt may be publishing at this moment. Both rename it, so one of them finds it gone: a
    removal in place could take files away from under a publish that has counted them already."""
    for _ in range(_DROP_TRIES):
        aside = stage.with_name(f"{stage.name}.dropped-{uuid.uuid4().hex}")
        try:
            stage.rename(aside)
        except FileNotFoundError:
            return
        _remove(aside)
    if os.path.lexists(stage):
        raise SinkError(f"the stage {stage} cannot be removed: it is being written to.")


def _remove(stage: Path) -> None:
    """Remove a stage. Its manifest goes first: what is left of a removal that was cut off can never be published. A
    driver that nobody could stop may be writing into it still, so a few tries are made."""
    shutil.rmtree(stage / "_manifest", ignore_errors=True)
    for _ in range(_DROP_TRIES):
        shutil.rmtree(stage, ignore_errors=True)
        if not os.path.lexists(stage):
            return
    raise SinkError(f"the stage {stage} cannot be removed: it is being written to, or permission is missing.")


@contextmanager
def _reporting(doing: str, key: BatchKey | Path) -> Iterator[None]:
    """Errors of the file system as errors of the sink."""
    try:
        yield
    except MicroBatchError:
        raise
    except OSError as error:
        what = f"batch {key}" if isinstance(key, BatchKey) else key
        raise SinkError(f"cannot {doing} {what}: {error}.") from error
