"""Joins the small files of each batch of a table of files.

::

    <path>/_compacted/<checkpoint>/lane=live/batch_id=7/attempt=2.<number>/…    before the exchange: the joined files;
                                                                               after it: what they took the place of
    <path>/_compacted/lock                                  held by the only compaction of the table that is at work

The joined files of a batch are put in its place whole, by the exchange of two folders that a replay uses too, under the
batch's lock and with the batch's own manifest, which names other files and is else the same: the same attempt of the
same plan. So whoever asks for the batch, replaces it or takes it out finds it as before.

A batch's folder is a value of the column ``batch_id``, and no two folders change in one step: files of two batches are
not joined.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime.layout import MANIFEST
from airflow_provider_microbatch.settings import make_private_folder
from airflow_provider_microbatch.sinks import Manifest
from airflow_provider_microbatch.sinks.compaction import CHANGED, Compacted, Compaction, Joining, pack, tried
from airflow_provider_microbatch.sinks.file.lock import locked
from airflow_provider_microbatch.sinks.file.posix import check_no_link, exchange, make_folders, sync, sync_tree
from airflow_provider_microbatch.sinks.file.removal import remove
from airflow_provider_microbatch.sinks.file.report import differences, read_manifest

if TYPE_CHECKING:
    from airflow_provider_microbatch.sinks.file import FileSink

COMPACTED = "_compacted"


def joining_of(sink: FileSink) -> Joining:
    """How files of the table are joined. :raises SinkError: if they cannot be."""
    # These two read files as this package does, and so need it first.
    from airflow_provider_microbatch.sinks.compaction.lines import LineJoining
    from airflow_provider_microbatch.sinks.compaction.parquet import ParquetJoining

    if sink.format == "parquet":
        return ParquetJoining()
    return LineJoining(sink.format, sink.options)


@dataclass(frozen=True)
class Joinable:
    """A batch whose small files are to be joined.

    :param found: its manifest.
    :param target: its folder.
    :param groups: names of files, of which each group becomes one file.
    """

    found: Manifest
    target: Path
    groups: list[list[str]]

    @property
    def before(self) -> list[int]:
        """The size of each small file, in bytes."""
        return [self.found.files[name] for group in self.groups for name in group]

    def bytes_of(self, group: Sequence[str]) -> int:
        """The size of a group, in bytes."""
        return sum(self.found.files[name] for name in group)


@dataclass(frozen=True)
class Folders:
    """:param root: the table's folder.
    :param joining: how files of its format are joined.
    :param locked: holds the lock of a batch.
    """

    root: Path
    joining: Joining
    locked: Callable[[BatchKey], AbstractContextManager[None]]

    def compact(self, wanted: Compaction, batches: Iterable[BatchKey]) -> Compacted:
        """Compact the batches, one after the other.

        :raises OSError: if another compaction of the table is at work, or for an error of the file system that each
            further batch would meet too.
        """
        done = Compacted()
        looks = (tried(key, done, partial(self._look, key, wanted, done)) for key in batches)
        joinable = (one for one in looks if one is not None)
        if wanted.dry_run:
            for one in joinable:
                done.join([one.found.key], one.before, [one.bytes_of(group) for group in one.groups])
            return done
        first = next(joinable, None)
        if first is None:
            return done  # nothing is made in a folder that may be somebody else's by now
        check_no_link(self.root, self.root / COMPACTED)
        make_private_folder(self.root / COMPACTED)
        with _only_one(self.root):
            for one in chain([first], joinable):
                tried(one.found.key, done, partial(self._join, one, wanted, done))
        return done

    def _look(self, key: BatchKey, wanted: Compaction, done: Compacted) -> Joinable | None:
        """What of the batch is to be joined; None if nothing is, or may be."""
        target = self.root / f"lane={key.lane}" / f"batch_id={key.id}"
        check_no_link(self.root, target)
        found = read_manifest(target, key)
        why = "not published by this package" if found is None else wanted.refusal(found)
        if found is None or why is not None:
            done.leave(key, why or "")
            return None
        small = [name for name in sorted(found.files) if found.files[name] < wanted.target_bytes]
        if len(small) < 2:
            return None
        damage = differences(target, found)
        if damage is not None:
            done.leave(key, f"not what was published ({damage}): `microbatch check --table` has the way on")
            return None
        # Of one folder, since a folder is a value of a column, and of one kind.
        kinds: dict[object, list[tuple[str, int]]] = {}
        for name in small:
            kind = (name.rpartition("/")[0], self.joining.kind(target / name))
            kinds.setdefault(kind, []).append((name, found.files[name]))
        groups = [group for files in kinds.values() for group in pack(files, wanted.target_bytes)]
        return Joinable(found, target, groups) if groups else None

    def _join(self, one: Joinable, wanted: Compaction, done: Compacted) -> None:
        joined = self._replace(one.found, one.target, one.groups, wanted)
        if joined is None:
            done.leave(one.found.key, CHANGED)
            return
        new = [size for name, size in joined.files.items() if name not in one.found.files]
        done.join([one.found.key], one.before, new)

    def _replace(self, found: Manifest, target: Path, groups: list[list[str]], wanted: Compaction) -> Manifest | None:
        """Put the joined files in the batch's place. :return: the manifest in place; None if the batch has changed."""
        place = self.root / COMPACTED / wanted.checkpoint / target.parent.name / target.name
        work = place / f"attempt={found.epoch}.{uuid.uuid4().hex}"
        check_no_link(self.root, work.parent)
        make_folders(work.parent)
        try:
            joined = self._prepare(found, target, groups, work)
            sync_tree(work)
            sync(work.parent)
            with self.locked(found.key):
                # Whatever has changed since the files were read, their rows are no longer the batch's.
                if read_manifest(target, found.key) != found or differences(target, found) is not None:
                    remove(self.root, work)
                    return None
                why = wanted.refusal(found)
                if why is not None:
                    raise SinkError(why)
                self._exchange(work, target)
        except BaseException:
            # After the exchange the folder holds what readers have listed, and belongs to the janitor.
            if self._is_prepared(work, found):
                remove(self.root, work)
            raise
        sync(target.parent)
        sync(work.parent)
        return joined

    def _prepare(self, found: Manifest, target: Path, groups: list[list[str]], work: Path) -> Manifest:
        """The batch's folder as it is to be, beside the one that is."""
        work.mkdir()
        shutil.copymode(target, work)
        gone = {name for group in groups for name in group}
        files = {name: size for name, size in found.files.items() if name not in gone}
        for name in files:
            _link(target / name, _made(work, target, name))
        for number, group in enumerate(groups):
            folder, _, last = group[0].rpartition("/")
            ending = last.partition(".")[2]
            name = f"{folder}/" if folder else ""
            name += f"part-{number:05}-joined-{uuid.uuid4()}.{ending}"
            path = _made(work, target, name)
            self.joining.join([target / one for one in group], path)
            shutil.copymode(target / group[0], path)
            files[name] = path.stat().st_size
        for entry in sorted(os.scandir(target), key=lambda entry: entry.name):
            if entry.name.startswith("_") and "=" not in entry.name and entry.name != MANIFEST:
                _copy(Path(entry.path), work / entry.name)
        joined = dataclasses.replace(found, files=files)
        _write_manifest(joined, work)
        return joined

    def _exchange(self, work: Path, target: Path) -> None:
        if not exchange(work, target):
            raise OSError(
                errno.ENOTSUP,
                "its file system cannot exchange two folders in one step (Linux renameat2), so readers could find a "
                "batch missing. Nothing was changed; use a local file system",
                str(self.root),
            )

    @staticmethod
    def _is_prepared(work: Path, found: Manifest) -> bool:
        """Whether the folder still holds joined files, or a part of them, and not what they took the place of."""
        with contextlib.suppress(SinkError):
            return read_manifest(work, found.key) != found
        return False


@contextmanager
def left_by_compactions(root: Path, places: list[Path], *, dry_run: bool) -> Iterator[list[Path]]:
    """The given folders below ``_compacted`` as long as no compaction is at work on the table: the janitor removes what
    is old in them, and must take nothing away from a compaction that has counted it already.

    :param dry_run: they are only listed, also while one is at work: whether anything is left decides whether the
        definition of a former table is kept, without which no janitor would look there again.
    """
    if not (root / COMPACTED).is_dir():
        yield []
        return
    check_no_link(root, root / COMPACTED)
    with contextlib.ExitStack() as stack:
        try:
            if not dry_run:
                stack.enter_context(_only_one(root))
        except TimeoutError:
            places = []
        yield places


def _only_one(root: Path) -> AbstractContextManager[None]:
    return locked(root / COMPACTED / "lock", seconds=0)


def _made(work: Path, target: Path, name: str) -> Path:
    """The path of a file in the new folder, whose parents are as readable as those in the old one."""
    parts = Path(name).parts[:-1]
    for depth in range(1, len(parts) + 1):
        below = Path(*parts[:depth])
        with contextlib.suppress(FileExistsError):
            (work / below).mkdir()
            shutil.copymode(target / below, work / below)
    return work / name


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)  # of a file system, or a user, that must not link


def _copy(source: Path, target: Path) -> None:
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target, follow_symlinks=False)


def _write_manifest(manifest: Manifest, folder: Path) -> None:
    lines: list[dict[str, Any]] = [{"result": dict(manifest.result)}]
    lines += [{"file": name, "bytes": size} for name, size in sorted(manifest.files.items())]
    (folder / MANIFEST).mkdir()
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (folder / MANIFEST / "part-00000.txt").write_text(text, encoding="utf-8")
