"""``renameat2(2)``: a rename that replaces nothing, and one that swaps two names in one step."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Callable
from pathlib import Path

NOREPLACE = 1
EXCHANGE = 2

UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
"""Error numbers by which a system, or a file system such as NFS, says that it does not know the flags."""

_AT_FDCWD = -100


@functools.cache
def _renameat2() -> Callable[..., int] | None:
    """The function of glibc 2.28 and newer; None elsewhere."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    function.restype = ctypes.c_int
    called: Callable[..., int] = function
    return called


def rename_with(flags: int, source: str | Path, target: str | Path, *, folder: int = _AT_FDCWD) -> None:
    """Rename ``source`` to ``target``.

    :param flags: ``NOREPLACE`` or ``EXCHANGE``.
    :param folder: descriptor of the folder that both names are in; unless given, the names are paths.
    :raises OSError: if the rename fails; with a number of ``UNSUPPORTED`` if no such rename can succeed here.
    """
    rename = _renameat2()
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(source))
    if rename(folder, os.fsencode(source), folder, os.fsencode(target), flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(source), None, str(target))
