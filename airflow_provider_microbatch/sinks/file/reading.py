"""Reading a small file that strangers may have put there: a FIFO, a link, or one without end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Who opens a FIFO without the last one waits for a writer."""

NO_FILE = "no file; look who put it there, and remove it"

LARGEST = 256 * 1024 * 1024
"""A manifest has a line for each file of its batch: this is millions of them."""


def open_regular(path: str | Path, *, dir_fd: int | None = None) -> BinaryIO:
    """A regular file, to read it.

    :param dir_fd: an open folder that a relative ``path`` begins at.
    :raises OSError: if it is a link, or anything else.
    """
    file = os.fdopen(os.open(path, _FILE, dir_fd=dir_fd), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, NO_FILE, str(path))
    return file


def read_regular(path: str | Path, *, dir_fd: int | None = None, largest: int = LARGEST) -> bytes:
    """The bytes of a regular file.

    :param dir_fd: an open folder that a relative ``path`` begins at.
    :raises OSError: if it is a link, anything else, or larger than ``largest``.
    """
    with open_regular(path, dir_fd=dir_fd) as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise OSError(errno.EFBIG, f"larger than {largest} bytes; look who put it there, and remove it", str(path))
    return data
