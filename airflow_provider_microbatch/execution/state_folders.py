"""The folders of a checkpoint's state, and the snapshots in them, as something that anybody may have written.

A transform runs where the checkpoint can be written. So folders are opened without following links, and held open
while something is removed in them: a link that takes a folder's place meanwhile changes nothing. What is read of a
snapshot is bounded, whatever its archive says of itself.
"""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger(__name__)

_DEPTH = 3
"""Operator, partition, store."""

_MOST_READ = 4_000_000
"""Bytes of a snapshot's metadata, and of an archive's list of contents: tens of thousands of files of one partition."""

_MOST_TOLD = 10_000
"""Bytes of a checksum's file."""

_HOLD = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without waiting for who writes into a pipe.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_NONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""What opening a folder says of one that was removed meanwhile, and of a link that took its place."""


def state_folders(state: Path) -> Iterator[tuple[int, Path, list[str]]]:
    """The folder of state and those below it, each open, with its path for messages and the names in it. Links are
    logged and passed over. A folder that is not there has none.

    :raises NotADirectoryError: if the folder itself is a link, or no folder.
    :raises OSError: if one of them cannot be read.
    """
    try:
        folder = os.open(state, _HOLD)
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        why = "a link in place of the folder of state, or no folder"
        raise NotADirectoryError(error.errno, why, str(state)) from None
    try:
        yield from _below(folder, state, _DEPTH)
    finally:
        os.close(folder)


def _below(folder: int, where: Path, depth: int) -> Iterator[tuple[int, Path, list[str]]]:
    entries = entries_of(folder)
    yield folder, where, [entry.name for entry in entries]
    for entry in entries:
        if entry.is_symlink():
            log.warning("%s is a link, and none of Spark's: look who put it there, and remove it", where / entry.name)
        elif depth and entry.is_dir(follow_symlinks=False):
            with opened_below(folder, where / entry.name) as inner:
                if inner is not None:
                    yield from _below(inner, where / entry.name, depth - 1)


def entries_of(folder: int) -> list[os.DirEntry[str]]:
    """What is in an open folder."""
    with os.scandir(folder) as found:
        return list(found)


@contextmanager
def opened_below(folder: int, path: Path) -> Iterator[int | None]:
    """A folder in an open folder, open; None if it is not there, or a link.

    :param path: where the folder lies, for messages too.
    :raises OSError: if it cannot be opened: what is in it is not gone, and is not taken for it.
    """
    try:
        inner = os.open(path.name, _HOLD, dir_fd=folder)
    except OSError as error:
        if error.errno not in _NONE:
            raise OSError(error.errno, error.strerror, str(path)) from error
        log.debug("%s is passed over: %s", path, error)
        yield None
        return
    try:
        yield inner
    finally:
        os.close(inner)


def size_told(folder: int, name: str) -> int | None:
    """The size of a file as Spark wrote it, by the file of its checksum; None if that says nothing that is known.

    :param folder: the folder of both, open.
    :param name: of the file with the checksum.
    :raises OSError: if it cannot be read.
    """
    with io.FileIO(os.open(name, _READ, dir_fd=folder)) as file:
        text = file.read(_MOST_TOLD)
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        told = json.loads(text or b"")["mainFileSize"]
        return told if type(told) is int else None
    return None


def parts_of(folder: int, name: str) -> set[str]:
    """Names of the files that a snapshot is made of: RocksDB's metadata, which Spark puts into the archive.

    :param folder: the snapshot's folder, open.
    :raises OSError: if it cannot be read, by whatever Spark wrote.
    :raises Exception: if Spark did not write it so; any, as the archive's reader does.
    """
    with _Bounded(io.FileIO(os.open(name, _READ, dir_fd=folder))) as file:
        try:
            text = _metadata_in(file)
        except Exception:
            if file.failed is not None:  # which the archive's reader takes for a file that is no archive
                raise file.failed from None
            raise
    if len(text) > _MOST_READ:
        raise ValueError(f"its metadata has more than {_MOST_READ:,} bytes")
    return {part for line in text.decode().splitlines()[1:] for part in _named_by(json.loads(line))}


def _metadata_in(file: _Bounded) -> bytes:
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        raise ValueError("it is no file")
    with zipfile.ZipFile(file) as archive:
        metadata = archive.getinfo("metadata")
        if metadata.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("it is compressed in another way")  # of which some may ask for any memory
        with archive.open(metadata) as content:
            return content.read(_MOST_READ + 1)


def _named_by(values: object) -> Iterator[str]:
    if not isinstance(values, dict):
        raise ValueError("its metadata is no object")
    for kind in ("sstFiles", "logFiles"):
        for one in values.get(kind, ()):
            yield str(one.get("dfsSstFileName") or one.get("dfsFileName") or "")


class _Bounded(io.BufferedReader):
    """A file of which nobody reads more than :data:`_MOST_READ` bytes at once, and which remembers that it could not be
    read."""

    failed: OSError | None = None

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _MOST_READ:
            size = _MOST_READ + 1
        try:
            found = super().read(size)
        except OSError as error:
            self.failed = error
            raise
        if len(found) > _MOST_READ:
            raise ValueError(f"it asks for more than {_MOST_READ:,} bytes")
        return found
