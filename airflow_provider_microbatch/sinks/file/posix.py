"""POSIX file system operations for publishing: a rename that never replaces, an exchange, and durability."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from pathlib import Path

from airflow_provider_microbatch.renameat2 import EXCHANGE, NOREPLACE, UNSUPPORTED, rename_with
from airflow_provider_microbatch.sinks.file.reading import open_regular


def rename_new(source: Path, target: Path) -> bool:
    """Rename the folder ``source`` to ``target`` unless ``target`` exists.

    Without ``renameat2`` (not Linux, or a file system such as NFS that knows no flags) the plain rename does as well:
    POSIX lets it replace a folder only if that folder is empty, and every folder that this package publishes holds
    ``_manifest``.

    :return: False if ``target`` exists; both are left as they are.
    """
    try:
        rename_with(NOREPLACE, source, target)
    except OSError as error:
        if error.errno in UNSUPPORTED:
            return _rename_plain(source, target)
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return False
        raise
    return True


def _rename_plain(source: Path, target: Path) -> bool:
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            return False
        raise
    return True


def exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step: neither name is ever missing.

    :return: False if this system cannot swap folders; nothing is changed then.
    """
    try:
        rename_with(EXCHANGE, one, other)
    except OSError as error:
        if error.errno in UNSUPPORTED:
            return False
        raise
    return True


def sync(path: Path) -> None:
    """fsync a file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> None:
    """fsync everything below ``root`` and ``root`` itself: Spark leaves its files in the page cache, and if a publish
    survived a power cut and its data did not, the batch would be empty files.

    :raises OSError: if there is anything but files and folders.
    """
    for folder, _, names in os.walk(root):
        for name in names:
            with open_regular(Path(folder, name)) as file:  # user code writes there: a FIFO would block for ever
                os.fsync(file.fileno())
        sync(Path(folder))


def make_folders(path: Path) -> None:
    """Create ``path`` and its parents, durably."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


def put_file(root: Path, path: Path, data: bytes) -> None:
    """Write a file of a table, in place of an existing one. Durable on return, and never seen half written.

    :param root: a folder of the table above the file.
    :raises OSError: for a link between ``root`` and the file.
    """
    check_no_link(root, path.parent)
    make_folders(path.parent)
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with hidden.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    hidden.replace(path)
    sync(path.parent)


def check_no_link(root: Path, folder: Path) -> None:
    """Refuse links in a table's folders, where others may write: through a link, files of another folder would be
    written or removed. The table's own folder, which the user names, may be a link.

    :raises OSError: for a link at ``folder`` or between it and ``root``.
    """
    below = root
    for name in folder.relative_to(root).parts:
        below = below / name
        if below.is_symlink():
            raise OSError(errno.ELOOP, "a link in place of a folder of the table; look who put it there, and remove it",
                          str(below))  # fmt: skip


def write_mark(path: str | Path, text: str, *, dir_fd: int | None = None) -> None:
    """Make a small file, unless the path exists: an existing file or link is left as it is.

    :param dir_fd: an open folder that a relative ``path`` starts from.
    """
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=dir_fd)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
