"""A folder that is held open by its descriptor: calls work in that folder, even if its path leads elsewhere by then."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# On Linux the right to search a folder is enough to hold it.
_HOLD = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)


@contextmanager
def opened(base: str, below: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """A descriptor of a folder, for the ``dir_fd`` of calls of :mod:`os`.

    :param base: a folder that the user names; the folder may be a link, or lie behind a link.
    :param below: the names that lead from the base to the folder. Others may write below the base, so none of these
        names may be a link.
    :param make: make the folders that are missing below the base.
    :raises NotADirectoryError: if one of the names below the base is a link, or no folder.
    """
    folder = os.open(base, _HOLD)
    try:
        for name in below:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=folder)
            try:
                inner = os.open(name, _HOLD | os.O_NOFOLLOW, dir_fd=folder)
            except NotADirectoryError as error:
                raise NotADirectoryError(error.errno, f"{name!r} below {base!r} is a link, or no folder") from None
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)
