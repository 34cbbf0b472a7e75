"""A lock file with a limited wait: any process that can read a file can lock it, and may then be stopped for ever."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from airflow_provider_microbatch.settings import settings

TABLE_SECONDS = 60.0
"""Time limit for locks whose holder brings a stage to disk and renames it."""

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5


@contextmanager
def locked(path: Path, *, seconds: float) -> Iterator[None]:
    """Hold the lock file ``path``. The kernel frees the lock when its holder dies, so it is never stale. The file
    stays: otherwise two holders could lock two files of one name. The file is private: no other user can lock it.

    :param seconds: how long to wait for the lock's holder.
    :raises OSError: if the path is a link or no regular file, or if the lock is held for longer.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, _FLAGS, settings().file_mode), "ab") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "no file, so no lock; look who put it there, and remove it", str(path))
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & ~settings().file_mode:
            os.fchmod(file.fileno(), stat.S_IMODE(found.st_mode) & settings().file_mode)
        if not _taken(file, seconds):
            raise TimeoutError(
                errno.ETIMEDOUT,
                f"locked for more than {seconds:.0f} s by {_holders(found)}. Nothing was done. Look what it is doing "
                "(it may be stopped, or on another machine) and end it; then try again",
                str(path),
            )
        yield


def _taken(file: BinaryIO, seconds: float) -> bool:
    end, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(pause * 2, _LONGEST_PAUSE)
        else:
            return True


def _holders(found: os.stat_result) -> str:
    """The processes that hold a lock of the file, as far as this machine knows."""
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    known = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text(encoding="ascii", errors="replace").splitlines():
            fields = line.split()
            if len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == place and fields[4].isdecimal():
                known.append(f"process {fields[4]}")
    return " and ".join(known) or "a process that this machine does not know"
