"""Hidden files that a store does not list and that somebody may stumble over: what killed writers left, and Hadoop's
checksums of files that are gone or were changed by hand."""

from __future__ import annotations

import os
import re
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

_TEMPORARY = re.compile(r"\..+\.[0-9a-f-]{32,36}\.tmp")
_CHECKSUM = re.compile(r"\.(?P<name>.+)\.crc")
_TEMPORARY_MS = 60 * 60 * 1000
"""A writer needs milliseconds. After an hour nobody is going to link the file to its name."""


@dataclass(frozen=True, kw_only=True)
class Litter:
    """A hidden file that is no use.

    :param path: relative to the checkpoint.
    :param why: the reason, for people.
    """

    path: str
    why: str


def find_litter(root: Path, *, now_ms: int) -> list[Litter]:
    """All of it below ``root``, in order. Reads only.

    :param now_ms: the file system's clock, milliseconds since the epoch.
    """
    found = []
    for folder, _, names in os.walk(root):
        for name in sorted(names):
            path = Path(folder, name)
            why = _why(path, now_ms)
            if why is not None:
                found.append(Litter(path=path.relative_to(root).as_posix(), why=why))
    return sorted(found, key=lambda litter: litter.path)


def is_litter(name: str) -> bool:
    """Whether a file of this name can be litter."""
    return bool(_TEMPORARY.fullmatch(name) or _CHECKSUM.fullmatch(name))


def move_litter(root: Path, path: str, target: str) -> None:
    """Move a hidden file to where it is in nobody's way; done already if it is not there."""
    (root / target).parent.mkdir(parents=True, exist_ok=True)
    if (root / path).exists():
        (root / path).rename(root / target)


def _why(path: Path, now_ms: int) -> str | None:
    try:
        if _TEMPORARY.fullmatch(path.name):
            old = now_ms - path.stat().st_mtime_ns // 1_000_000 > _TEMPORARY_MS
            return "a write that was cut off" if old else None
        checksum = _CHECKSUM.fullmatch(path.name)
        if checksum is None:
            return None
        entry = path.with_name(checksum["name"])
        if not entry.exists():
            return "the checksum of a file that is gone"
        return None if _fits(path.read_bytes(), entry.read_bytes()) else "Spark would refuse the file that it is of"
    except FileNotFoundError:
        return None


def _fits(checksum: bytes, data: bytes) -> bool:
    """Hadoop's ``ChecksumFileSystem``: ``crc`` and a NUL, the size of a chunk, a CRC-32 for each chunk, big-endian."""
    if checksum[:4] != b"crc\0" or len(checksum) < 8:
        return False
    (size,) = struct.unpack(">i", checksum[4:8])
    chunks = [data[start : start + size] for start in range(0, len(data), size)] if size > 0 else []
    return checksum[8:] == b"".join(struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
