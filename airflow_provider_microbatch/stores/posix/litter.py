"""Finds hidden files that are of no use and may get in a reader's way, and that a store does not list.

They are files that killed writers left, and Hadoop's checksums of files that are gone or were changed by hand.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from airflow_provider_microbatch.stores import Litter
from airflow_provider_microbatch.stores.posix.folder import Folder, explained

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f-]{32,36}\.tmp")
_CHECKSUM = re.compile(r"\.(?P<name>.+)\.crc")
_TEMPORARY_MS = 60 * 60 * 1000
"""A writer needs milliseconds. After an hour no writer is going to link the file to its name."""


def find_litter(root: Path, *, now_ms: int) -> list[Litter]:
    """Return all litter below ``root``, in order. Only reads.

    :param now_ms: the file system's clock, milliseconds since the epoch.
    :raises CheckpointError: if a hidden file, or the file that it belongs to, is a link or not a regular file.
    """
    try:
        with Folder.open(root) as folder:
            found = list(_find(folder, "", now_ms))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise explained(error, f"look for litter in {root}") from error
    return sorted(found, key=lambda litter: litter.path)


def is_litter(name: str) -> bool:
    """Whether a file of this name can be litter."""
    return bool(_TEMPORARY.fullmatch(name) or _CHECKSUM.fullmatch(name))


def is_cut_off(hidden: str, name: str) -> bool:
    """Whether a hidden file belongs to a write, or a removal, of the entry ``name``."""
    found = _TEMPORARY.fullmatch(hidden)
    return found is not None and found["name"] == name


def move_litter(root: Path, path: str, target: str) -> None:
    """Move a hidden file to a place where it disturbs no reader; does nothing if the file is gone already.

    :raises CheckpointError: if it is a link or not a regular file, or if a folder on the way is a link.
    """
    (*above, name), (*aside, moved) = path.split("/"), target.split("/")
    try:
        with Folder.open(root, above) as folder:
            found = folder.look(name)
            if found is None:
                return
            folder.check_file(name, found)
            with Folder.open(root, aside, make=True) as to:
                folder.move(name, to, moved)
    except FileNotFoundError:
        return
    except OSError as error:
        raise explained(error, f"move {root / path} to {root / target}") from error


def _find(folder: Folder, path: str, now_ms: int) -> Iterator[Litter]:
    """:param path: path of the folder, with a slash at its end, or empty."""
    for name in folder.names():
        with contextlib.suppress(FileNotFoundError):
            found = folder.look(name)
            if found is None:
                continue
            if stat.S_ISDIR(found.st_mode):
                with folder.enter(name) as below:
                    yield from _find(below, f"{path}{name}/", now_ms)
            elif is_litter(name):
                folder.check_file(name, found)
                why = _why(folder, name, found, now_ms)
                if why is not None:
                    yield Litter(path=path + name, why=why)


def _why(folder: Folder, name: str, found: os.stat_result, now_ms: int) -> str | None:
    checksum = _CHECKSUM.fullmatch(name)
    if checksum is None:
        old = now_ms - found.st_mtime_ns // 1_000_000 > _TEMPORARY_MS
        return "a write that was cut off" if old else None
    entry = checksum["name"]
    if folder.look(entry) is None:
        return "the checksum of a file that is gone"
    with folder.file(name) as sums, folder.file(entry) as data:
        return None if _fits(sums.read(), data.read()) else "Spark would refuse the file that it is of"


def _fits(checksum: bytes, data: bytes) -> bool:
    """Whether a checksum file fits the data. Format of Hadoop's ``ChecksumFileSystem``: ``crc`` and a NUL, the size of
    a chunk, a CRC-32 for each chunk, big-endian."""
    if checksum[:4] != b"crc\0" or len(checksum) < 8:
        return False
    (size,) = struct.unpack(">i", checksum[4:8])
    chunks = [data[start : start + size] for start in range(0, len(data), size)] if size > 0 else []
    return checksum[8:] == b"".join(struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
