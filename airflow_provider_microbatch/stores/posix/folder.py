"""An open folder of a checkpoint.

Other users may write there: between a look at a name and an action by that name, a link may have taken its place. So no
action uses a path: each folder is opened from the one above it, no link is followed, and every action happens in the
folder that was opened, wherever its name leads by then.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn, Self

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.renameat2 import EXCHANGE, UNSUPPORTED, rename_with
from airflow_provider_microbatch.settings import make_private_folder, open_private_file

_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
"""Without O_NONBLOCK, opening a FIFO would wait for a writer."""

_LOCK_SECONDS = 5.0
"""The time to wait for a file that another process replaces, which takes that process milliseconds unless it is
stopped. A process that waited for ever could not renew its lease meanwhile."""

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF})

_UNNAMED: int | None = getattr(os, "O_TMPFILE", None)


class Folder:
    """An open folder; a context manager that closes it. Names are those of entries directly in the folder.

    :param path: the folder's path when it was opened, for messages.
    :param descriptor: file descriptor of the folder.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def open(cls, top: Path, names: Iterable[str] = (), *, make: bool = False) -> Folder:
        """Open the folder ``names`` below ``top``, which the user names, and which may be a link.

        :param make: create missing folders, each durably. From ``top`` on, folders are private to this user, or open to
            the group as the settings say; folders above it are shared with others, and get the rights of the umask.
        :raises CheckpointError: if one of ``names`` is a link.
        :raises OSError: if the folder is not there, or cannot be opened or made.
        """
        folder = cls(str(top), _open_top(top, make=make))
        for name in names:
            with folder:
                folder = folder.enter(name, make=make)
        return folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def enter(self, name: str, *, make: bool = False) -> Folder:
        """Open the folder ``name`` in this one; see :meth:`open`."""
        try:
            return Folder(self.where(name), os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=self._descriptor))
        except FileNotFoundError:
            if not make:
                raise
        except OSError as error:
            self._refuse(name, error)
        make_private_folder(name, dir_fd=self._descriptor)
        # If a crash lost the folder, the entries in it would be lost too.
        self.sync()
        return self.enter(name)

    def where(self, name: str) -> str:
        """The path of ``name``, for messages."""
        return f"{self.path}/{name}"

    def names(self) -> list[str]:
        """All names in the folder, unsorted."""
        with os.scandir(self._descriptor) as entries:
            return [entry.name for entry in entries]

    def names_of_no_files(self) -> list[str]:
        """All names in the folder but those of plain files, unsorted. Takes one listing, which also tells the types."""
        with os.scandir(self._descriptor) as entries:
            return [entry.name for entry in entries if not entry.is_file(follow_symlinks=False)]

    def look(self, name: str) -> os.stat_result | None:
        """The status of the entry of that name, for a link that of the link itself; None if there is none."""
        try:
            return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def look_at_no_link(self, name: str) -> os.stat_result | None:
        """The status of the entry of that name; None if there is none. :raises CheckpointError: if it is a link."""
        found = self.look(name)
        if found is not None and stat.S_ISLNK(found.st_mode):
            self._refuse_link(name)
        return found

    def check_file(self, name: str, found: os.stat_result) -> None:
        """:raises CheckpointError: if ``found``, the status of ``name``, is not that of a regular file."""
        if stat.S_ISREG(found.st_mode):
            return
        if stat.S_ISLNK(found.st_mode):
            self._refuse_link(name)
        kinds = {stat.S_IFDIR: "folder", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}
        kind = kinds.get(stat.S_IFMT(found.st_mode), "device")
        raise CheckpointError(
            f"{self.where(name)} is a {kind}, where a file should be. Nothing was done with it. Look who put it there, "
            "and remove it."
        )

    def file(self, name: str) -> BinaryIO:
        """Open the file of that name for reading.

        :raises CheckpointError: if it is a link, or not a regular file.
        :raises OSError: if it is not there, or cannot be opened.
        """
        try:
            descriptor = os.open(name, _FILE, dir_fd=self._descriptor)
        except OSError as error:
            self._refuse(name, error)
        try:
            self.check_file(name, os.fstat(descriptor))
            return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[BinaryIO]:
        """Open the file of that name and lock it: until it is closed, no other process that takes this lock replaces
        the file. The lock is on the file itself and ends with its holder: a process that was killed leaves no lock.

        :raises CheckpointError: as :meth:`file`; or if the file system has no locks.
        :raises TimeoutError: if another process does not release the lock.
        """
        until = time.monotonic() + _LOCK_SECONDS
        while True:
            with self.file(name) as file:
                self._lock(name, file, until)
                if self.is_file(name, file):
                    yield file
                    return
            # The file was replaced during the wait: the lock is on a file that has no name any more.

    def _lock(self, name: str, file: BinaryIO, until: float) -> None:
        while True:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError(errno.ETIMEDOUT, "another process has it locked, and may be stopped") from None
                time.sleep(0.01)
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    raise CheckpointError(
                        f"{self.where(name)} is on a file system without locks ({error.strerror}): nothing there can "
                        "be replaced safely."
                    ) from error
                raise

    def is_file(self, name: str, file: BinaryIO) -> bool:
        """Whether the open file has that name."""
        found = self.look(name)
        return found is not None and os.path.samestat(found, os.fstat(file.fileno()))

    def exchange(self, one: str, other: str) -> None:
        """Swap two files in one step.

        :raises FileNotFoundError: if one of them is not there; nothing is changed then.
        :raises CheckpointError: if the file system cannot swap files.
        """
        try:
            rename_with(EXCHANGE, one, other, folder=self._descriptor)
        except OSError as error:
            if error.errno in UNSUPPORTED:
                raise CheckpointError(
                    f"{self.where(other)} is on a file system that swaps no files ({error.strerror}): nothing there "
                    "can be replaced safely."
                ) from error
            raise

    def write(self, name: str, data: bytes) -> None:
        """Write a new file; its bytes are on disk on return. :raises FileExistsError: if the name is taken."""
        with os.fdopen(open_private_file(name, dir_fd=self._descriptor), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def link(self, source: str, target: str) -> None:
        """Give a file its name. :raises FileExistsError: if the name is taken."""
        here = self._descriptor
        os.link(source, target, src_dir_fd=here, dst_dir_fd=here, follow_symlinks=False)

    def move(self, name: str, to: Folder, target: str) -> None:
        """Move a file, and replace what is at the target."""
        os.rename(name, target, src_dir_fd=self._descriptor, dst_dir_fd=to._descriptor)

    def remove(self, name: str) -> None:
        """Remove a file if it is there. A link is removed, not its target."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def remove_folder(self, name: str) -> None:
        """Remove an empty folder."""
        os.rmdir(name, dir_fd=self._descriptor)

    def sync(self) -> None:
        """Sync the folder: its names are on disk on return."""
        os.fsync(self._descriptor)

    def clock_ns(self) -> int:
        """Modification time of a file created now, nanoseconds. The file gets no name where the file system supports
        that (Linux), so that the call leaves no trace, not even in the folder's own modification time."""
        if _UNNAMED is not None:
            with contextlib.suppress(OSError):
                return _made_ns(os.open(".", _UNNAMED | os.O_RDWR, 0o600, dir_fd=self._descriptor))
        name = f".clock.{uuid.uuid4().hex}.tmp"
        try:
            return _made_ns(open_private_file(name, dir_fd=self._descriptor))
        finally:
            self.remove(name)

    def _refuse(self, name: str, error: OSError) -> NoReturn:
        """Raise ``error``, which occurred at ``name``, or a CheckpointError that explains it."""
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            found = self.look(name)
            if error.errno == errno.ELOOP or (found is not None and stat.S_ISLNK(found.st_mode)):
                self._refuse_link(name)
            if error.errno == errno.ENXIO and found is not None:
                self.check_file(name, found)
        raise error

    def _refuse_link(self, name: str) -> NoReturn:
        try:
            leads = f"it leads to {os.readlink(name, dir_fd=self._descriptor)!r}"
        except OSError:
            leads = "it has gone since"
        raise CheckpointError(
            f"{self.where(name)} is a link. A checkpoint has none below its own folder, so nothing was done through "
            f"it. Look who put it there ({leads}), and remove it."
        )


def explained(error: OSError, doing: str) -> CheckpointError:
    """Return ``error`` as a CheckpointError that says what to do.

    :param doing: the failed action and its object, for the message.
    """
    if isinstance(error, PermissionError):
        advice = f"user id {os.geteuid()} has no permission. Give it the folder, or run as its owner."
    elif isinstance(error, (NotADirectoryError, IsADirectoryError, FileExistsError)):
        advice = f"{error.strerror}. A checkpoint needs a folder of its own; choose another path."
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = (
            f"{error.strerror}. Make room there: retention too has to write a name before it removes anything. Of a "
            "checkpoint that no command is changing, repaired/ and microbatch/sources/*/index/ may be deleted."
        )
    else:
        advice = f"{error.strerror or error}."
    return CheckpointError(f"cannot {doing}: {advice}")


def _open_top(top: Path, *, make: bool) -> int:
    try:
        return os.open(top, _FOLDER)
    except FileNotFoundError:
        if not make:
            raise
    _make_shared(top.parent)
    make_private_folder(top)
    _sync(top.parent)
    return os.open(top, _FOLDER)


def _make_shared(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_shared(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    _sync(folder.parent)


def _sync(path: Path) -> None:
    with Folder.open(path) as folder:
        folder.sync()


def _made_ns(descriptor: int) -> int:
    try:
        return os.fstat(descriptor).st_mtime_ns
    finally:
        os.close(descriptor)
