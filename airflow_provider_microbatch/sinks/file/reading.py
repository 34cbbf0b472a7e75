"""Reads a small file in a folder where others may have put a FIFO, a link, or an endless file under its name."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags for opening a file. Without O_NONBLOCK, opening a FIFO waits for a writer."""

NO_FILE = "no file; look who put it there, and remove it"

LARGEST = 256 * 1024 * 1024
"""Limit in bytes. A manifest has one line per file of its batch; this is enough for millions of files."""


def open_regular(path: str | Path, *, dir_fd: int | None = None) -> BinaryIO:
    """Open a regular file for reading.

    :param dir_fd: an open folder that a relative ``path`` starts from.
    :raises OSError: if the path is a link, or anything else than a regular file.
    """
    file = os.fdopen(os.open(path, _FILE, dir_fd=dir_fd), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, NO_FILE, str(path))
    return file


def read_regular(path: str | Path, *, dir_fd: int | None = None, largest: int = LARGEST) -> bytes:
    """The bytes of a regular file.

    :param dir_fd: an open folder that a relative ``path`` starts from.
    :raises OSError: if the path is a link, no regular file, or a file larger than ``largest`` bytes.
    """
    with open_regular(path, dir_fd=dir_fd) as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise OSError(errno.EFBIG, f"larger than {largest} bytes; look who put it there, and remove it", str(path))
    return data
