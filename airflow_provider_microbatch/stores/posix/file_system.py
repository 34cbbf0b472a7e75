"""Detects file systems on which no checkpoint must lie, and no table be begun."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")

_CACHING = re.compile(r"(nfs\d*|cifs|smb\d*|smbfs|afs|9p|fuse\.(sshfs|s3fs|gcsfuse|rclone|goofys|mount-s3|blobfuse2?))")
"""Types that answer from a cache of the client: an entry that another host has written may be absent for seconds, and
so may the renewal of a lease."""

_ESCAPED = re.compile(r"\\([0-7]{3})")


def type_of(path: Path, *, mounts: Iterable[str] | None = None) -> str | None:
    """Type of the file system on which ``path`` lies, or will lie once it is created; None where the type is not known.

    :param path: absolute.
    :param mounts: lines as of ``/proc/self/mountinfo``, which is read by default.
    """
    if mounts is None:
        try:
            mounts = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        except OSError:
            return None
    resolved = f"{path.resolve()}/"
    found, depth = None, -1
    for line in mounts:
        fields, _, rest = line.partition(" - ")
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields.split(" ")[4]).rstrip("/") + "/"
        # Of two mounts at one place, the later one hides the earlier.
        if resolved.startswith(point) and len(point) >= depth:
            found, depth = rest.split(" ")[0], len(point)
    return found


def caching_type(path: Path) -> str | None:
    """Type of the file system on which ``path`` lies, if it answers from a cache of the client's; else None."""
    kind = type_of(path)
    return None if kind is None or not _CACHING.fullmatch(kind) else kind


def unfit(path: Path) -> str | None:
    """The reason why a checkpoint must not lie at ``path``; None if none is known."""
    kind = caching_type(path)
    if kind is None:
        return None
    return (
        f"{path} is on a file system of type {kind!r}, which answers from a cache of its client's: what another host "
        "has written may be absent for seconds, so two runs could plan apart from each other, and a live attempt be "
        "taken for dead. Put the checkpoint on a local disk, or on one that shows every host the same at once."
    )
