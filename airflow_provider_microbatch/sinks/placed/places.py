"""Files of an attempt on their way from its stage into the table.

The files have to be in the table's folder before the log names them. So a complete stage is renamed to a folder of the
table that no other attempt uses; until the log names the folder, only a mark tells that it exists. A process that
publishes the folder, or removes it, holds the attempt's lock: files that a commit is about to name must not be removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.sinks import Manifest
from airflow_provider_microbatch.sinks.file.lock import TABLE_SECONDS, locked
from airflow_provider_microbatch.sinks.file.posix import check_no_link, make_folders, rename_new, sync, write_mark
from airflow_provider_microbatch.sinks.file.removal import folder_of, remove_in

DATA = "microbatch"
"""The folder of all files of batches. Its name is not hidden: VACUUM has to find files that the log no longer names."""
REST = f"{DATA}/rest/"
"""The folder of rewritten files: they keep the rows of other batches when a batch is taken out."""

_OWN = re.compile(rf"{DATA}/(?P<lane>[^/]+)/(?P<id>0|[1-9]\d*)/(?P<number>[0-9a-f]{{16}})/")
_SHARED = re.compile(rf"{REST}(?P<lane>[^/]+)/(?P<low>\d+)-(?P<high>\d+)/")
_MARK = re.compile(
    r"lane=(?P<lane>[^/]+)/batch_id=(?P<id>\d+)/attempt=(?P<epoch>\d+)\.(?P<number>[0-9a-f]{16})(?P<out>\.out)?"
)
_PLAIN = re.compile(r"[A-Za-z0-9/_.=-]+")


_TOLD = "the attempt's files are in the table's folder, and maybe not in its log\n"
_TOLD_OUT = "a commit takes the attempt out, or has done so: then its files go\n"
_LOCKS = 1024


@dataclass(frozen=True)
class Place:
    """The place of an attempt's files in the table.

    :param number: number of the attempt's manifest.
    :param below: the folder, relative to the table's folder.
    :param mark: the file that records the place until the attempt is published.
    :param out: the file that records it from before the commit that takes the attempt out. Nobody publishes it then.
    """

    number: int
    below: str
    mark: Path
    out: Path


IsIn = Callable[[BatchKey, int], bool]
"""Whether a table's log has a batch by the number of a manifest."""


@dataclass(frozen=True)
class Places:
    """:param root: the table's folder.
    :param hidden: the folder below it that readers skip.
    :param data: the folder below it of all files of batches.
    """

    root: Path
    hidden: Path
    data: str = DATA

    @contextmanager
    def locked(self, batch: BatchIdentity, epoch: int) -> Iterator[None]:
        """Be the only process that publishes or removes this attempt's output. A process that sleeps with the lock does
        not block the next attempt, which has another lock."""
        name = (zlib.crc32(f"{batch.checkpoint}/{batch.key}".encode()) + epoch) % _LOCKS
        path = self.hidden / "_locks" / str(name)
        check_no_link(self.root, path)
        with locked(path, seconds=TABLE_SECONDS):
            yield

    def of(self, batch: BatchIdentity, epoch: int, number: int) -> Place:
        """The place of an attempt whose manifest has that number."""
        mark = self._marks(batch.checkpoint) / f"lane={batch.key.lane}" / f"batch_id={batch.key.id}"
        return Place(
            number=number,
            below=f"{folder_of_batch(batch.key, data=self.data)}{number:016x}",
            mark=mark / f"attempt={epoch}.{number:016x}",
            out=mark / f"attempt={epoch}.{number:016x}.out",
        )

    def marked(self, batch: BatchIdentity, epoch: int) -> list[Place]:
        """Places of the attempt that have a mark, of whichever kind: at most one, unless a checkpoint was restored."""
        folder = self._marks(batch.checkpoint) / f"lane={batch.key.lane}" / f"batch_id={batch.key.id}"
        own = re.compile(rf"attempt={epoch}\.([0-9a-f]{{16}})(\.out)?")  # others may write there
        found = filter(None, (own.fullmatch(path.name) for path in folder.glob(f"attempt={epoch}.*")))
        return [self.of(batch, epoch, int(number, 16)) for number in sorted({match[1] for match in found})]

    def stages(self, checkpoint: str, *, is_in: IsIn) -> Iterator[tuple[BatchKey, int]]:
        """All attempts of a checkpoint that have a marked place, but those whose files the log names: who was to take
        one out may have died before.

        :param is_in: asked of attempts that are marked to go out.
        """
        root = self._marks(checkpoint)
        names = [path.relative_to(root).as_posix() for path in root.glob("lane=*/batch_id=*/attempt=*")]
        for match in filter(None, map(_MARK.fullmatch, names)):
            with contextlib.suppress(DefinitionError, ValueError):
                key = BatchKey(match["lane"], int(match["id"]))
                if match["out"] is None or not is_in(key, int(match["number"], 16)):
                    yield key, int(match["epoch"])

    def take(self, stage: Path, place: Place) -> bool:
        """Rename a stage, which is complete and on disk, to its place.

        :return: False if the stage is gone; an earlier try may have moved it to its place.
        """
        target = self.root / place.below
        check_no_link(self.root, target.parent)
        make_folders(target.parent)
        self.mark(place)
        try:
            rename_new(stage, target)
        except FileNotFoundError:
            return False
        sync(target.parent)
        with contextlib.suppress(OSError):
            stage.parent.rmdir()  # the batch's staging folder, if this was its last stage
        return True

    def mark(self, place: Place) -> None:
        """Record, durably, that files are in that place which the log may not name."""
        self._write(place.mark, _TOLD)

    def mark_out(self, place: Place) -> None:
        """Record, durably, that the log names the place only until a commit that is to come. It stays on record if that
        never comes: whoever finds the attempt in cannot tell whether it still will."""
        self._write(place.out, _TOLD_OUT)

    def _write(self, mark: Path, told: str) -> None:
        check_no_link(self.root, mark.parent)
        make_folders(mark.parent)
        write_mark(mark, told)
        sync(mark.parent)

    def forget(self, place: Place) -> None:
        """Remove the mark: the log names the place durably, or the files are gone."""
        self._unlink(place.mark)

    def _unlink(self, mark: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            mark.unlink()
        with contextlib.suppress(OSError):
            mark.parent.rmdir()

    def remove(self, place: Place) -> bool:
        """Remove an attempt's files that no commit will name. :return: False if there were none."""
        target = self.root / place.below
        found = os.path.lexists(target)
        if found:
            with folder_of(self.root, target) as held:
                remove_in(held, target)
            with contextlib.suppress(OSError):
                target.parent.rmdir()
        self._unlink(place.mark)
        self._unlink(place.out)
        return found

    def _marks(self, checkpoint: str) -> Path:
        return self.hidden / "_placed" / (checkpoint or "-")


def folder_of_batch(key: BatchKey, *, data: str = DATA) -> str:
    """The folder, relative to the table's folder, whose files have rows of that batch and of no other.

    :param data: the folder of all files of batches.
    """
    return f"{data}/{key.lane}/{key.id}/"


@dataclass(frozen=True)
class Shared:
    """The batches whose rows a joined file may have, besides rows of nobody else: those of one lane from ``low`` to
    ``high``. Its path says so, since a file's statistics say it only where all its columns have bounds."""

    lane: str
    low: int
    high: int

    @property
    def folder(self) -> str:
        """The folder of such files, relative to the table's folder."""
        return f"{REST}{self.lane}/{self.low}-{self.high}/"

    def may_have(self, key: BatchKey) -> bool:
        """Whether a file with this path may have rows of the batch."""
        return key.lane == self.lane and self.low <= key.id <= self.high


def shared_by(path: str) -> Shared | None:
    """The batches that the path of a joined file names; None if it is another file's path."""
    found = _SHARED.match(path)
    return None if found is None else Shared(found["lane"], int(found["low"]), int(found["high"]))


def own_of(path: str) -> tuple[BatchKey, int] | None:
    """The batch whose own file has that path, and the number of the manifest of the attempt that wrote it; None if it
    is another file's path."""
    found = _OWN.match(path)
    try:
        return None if found is None else (BatchKey(found["lane"], int(found["id"])), int(found["number"], 16))
    except DefinitionError:
        return None


def is_plain(path: str) -> bool:
    """Whether every reader and writer spells the path alike. delta-rs encodes an umlaut in the log; Spark's VACUUM
    lists the file under its real name, does not find that name in the log, and removes the file."""
    return _PLAIN.fullmatch(path) is not None


def names_in_place(manifest: Manifest) -> Iterator[tuple[str, str, int]]:
    """For each file of an attempt that is in place its path in the manifest, its present path, and its bytes."""
    for number, (file, size) in enumerate(sorted(manifest.files.items())):
        yield file, file if is_plain(file) else f"part-{number:05}.parquet", size


def in_place(folder: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Rename files whose paths from Spark have special signs to plain paths. Idempotent.

    :param folder: the folder of the files.
    :return: for each file its path in the manifest, and its present path below ``folder``.
    :raises SinkError: if a file is missing, or its size has changed: another program was there.
    """
    for file, now, size in names_in_place(manifest):
        path = folder / now
        if now != file and (folder / file).exists():
            (folder / file).rename(path)
        found = path.lstat().st_size if path.is_file() and not path.is_symlink() else None
        if found != size:
            what = "is gone" if found is None else f"has {found} bytes, not {size}"
            raise SinkError(
                f"{path} {what}: somebody removed or changed what batch {manifest.key} attempt {manifest.epoch} wrote "
                "(a clean-up of the table that keeps less than a day?). It was not published; run the batch again."
            )
        yield file, now
    # Also for renames of an earlier try: the log must not survive a power cut that a name it has does not.
    sync(folder)
