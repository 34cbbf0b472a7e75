"""A checkpoint on a POSIX file system: atomic by hard link, durable by fsync."""

from __future__ import annotations

import contextlib
import errno
import stat
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.runtime.masking import mask
from airflow_provider_microbatch.stores import Litter, Store, Versioned, check_path
from airflow_provider_microbatch.stores.posix.file_system import unfit
from airflow_provider_microbatch.stores.posix.folder import Folder, explained
from airflow_provider_microbatch.stores.posix.litter import find_litter, is_cut_off, is_litter, move_litter

_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
_FOLDER_TRIES = 10


class PosixStore(Store):
    """A folder. An entry is linked into place when its bytes are on disk, so no reader ever sees half of an entry.

    A link, unlike a rename, fails when the name is taken: that is the put-if-absent. File systems without hard links
    are refused, because every other way to write is either not atomic or overwrites.

    A user who can write to the checkpoint can put a link into it. If the link were followed, a purge of old entries
    would empty the folder that it leads to. No link is followed, whenever it appears: see :class:`Folder`.

    Files and folders are private to this user, or open to the group too as ``[microbatch] group_access`` says; existing
    ones keep their rights.

    :param top: absolute path of the folder where the checkpoint begins; the first write creates it. Missing folders
        above it are created with the umask's rights: they are shared with others, such as a table's readers.
    :param above: names of the folders below ``top`` that lead to the place where this store begins.
    """

    def __init__(self, top: str | Path, *, above: Sequence[str] = ()) -> None:
        self._top = top if isinstance(top, Path) else Path(top)
        self._above = tuple(above)
        if not self._top.is_absolute():
            raise CheckpointError(f"checkpoint path {str(top)!r} is relative; give an absolute one.")

    @property
    def _root(self) -> Path:
        return Path(self.location)

    @classmethod
    def at(cls, location: str) -> Self:
        """Return the store for an absolute path or a ``file:`` URL (percent signs are literal, as in Spark)."""
        path = location.removeprefix("file:")
        if path != location and path.startswith("//"):
            host, _, rest = path[2:].partition("/")
            if host not in ("", "localhost"):
                raise CheckpointError(
                    f"checkpoint {mask(location)!r} names host {host.rpartition('@')[2]!r}; write file:///path with 3 "
                    "slashes."
                )
            path = f"/{rest}"
        if not path.startswith("/"):
            raise CheckpointError(
                f"checkpoint {location!r} is not absolute, and workers run in other folders than you. Write it from "
                "'/' on."
            )
        return cls(path)

    @cached_property
    def location(self) -> str:
        """The folder's path."""
        return "/".join([str(self._top).rstrip("/"), *self._above]) or "/"

    @property
    def for_spark(self) -> str:
        """The folder as a ``file:`` URL. Spark takes percent signs literally."""
        return f"file://{self._root}"

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write ``data`` at ``path`` unless something is there; see :meth:`Store.put_if_absent`."""
        above, name = _split(path)
        try:
            for _ in range(_FOLDER_TRIES):
                # An empty folder may go while it is open: another process that creates it puts its own in its place, or
                # retention removes it. Nothing can be written in the old folder then; the next try opens the folder
                # that is there now.
                with contextlib.suppress(FileNotFoundError), self._open(above, make=True) as folder:
                    return self._put(folder, name, data)
            with self._open(above, make=True) as folder:
                return self._put(folder, name, data)
        except OSError as error:
            raise self._explained(error, "write", path) from error

    def _put(self, folder: Folder, name: str, data: bytes) -> bool:
        if folder.look(name) is not None:
            return False
        temporary = f".{name}.{uuid.uuid4().hex}.tmp"
        try:
            folder.write(temporary, data)
            # A Hadoop checksum left by an entry that was removed by hand would make Spark refuse the new one.
            folder.remove(_checksum(name))
            return self._link(folder, temporary, name)
        finally:
            with contextlib.suppress(OSError):
                folder.remove(temporary)

    def get(self, path: str) -> bytes | None:
        """The bytes at ``path``, or None.

        :raises CheckpointError: if the entry, or a folder on the way to it, is a link, since a link may lead to another
            user's secrets; or if the entry is not a regular file, since a FIFO keeps its reader waiting for ever.
        """
        above, name = _split(path)
        try:
            with self._open(above) as folder, folder.file(name) as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._explained(error, "read", path) from error

    def get_range(self, path: str, start: int, size: int) -> bytes | None:
        """``size`` bytes at ``path`` from ``start`` on, or None."""
        above, name = _split(path)
        try:
            with self._open(above) as folder, folder.file(name) as file:
                file.seek(start)
                return file.read(size)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._explained(error, "read", path) from error

    def get_versioned(self, path: str) -> Versioned | None:
        """The file at ``path`` with a digest of its bytes, or None; raises as :meth:`get`."""
        data = self.get(path)
        return None if data is None else Versioned.of(data)

    def compare_and_put(self, path: str, data: bytes, *, version: str) -> str | None:
        """Swap a new file with the one at ``path`` if that has the version. The old file is locked meanwhile, against
        other processes that replace it. A process that removes the file does not wait for the lock: otherwise a process
        that is stopped while it holds the lock would hold up all others. A file that has lost its name cannot be
        swapped, so a removed file does not come back.

        :raises CheckpointError: if the entry is a link or not a regular file; or if the file system has no locks, or
            cannot swap files.
        """
        above, name = _split(path)
        temporary = f".{name}.{uuid.uuid4().hex}.tmp"
        try:
            with self._open(above) as folder, folder.locked(name) as file:
                if Versioned.of(file.read()).version != version:
                    return None
                try:
                    folder.write(temporary, data)
                    # The new file is locked, so that no other process replaces it before the swap back would take it
                    # away.
                    with folder.locked(temporary):
                        folder.exchange(temporary, name)
                        if not folder.is_file(temporary, file):
                            # The entry was removed and put again since it was read: no process has compared the new
                            # one.
                            folder.exchange(temporary, name)
                            return None
                    folder.remove(_checksum(name))
                finally:
                    with contextlib.suppress(OSError):
                        folder.remove(temporary)
                folder.sync()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._explained(error, "write", path) from error
        return Versioned.of(data).version

    def list(self, folder: str) -> list[str]:
        """Names directly in ``folder``. Hidden names (unfinished writes, Hadoop's checksums) are left out.

        :raises CheckpointError: if a folder of the checkpoint is a link: listed entries are deleted at times.
        """
        return [*self._names(folder, Folder.names)]

    def present(self, folder: str, names: Collection[str]) -> set[str]:
        """Those of ``names`` that are in ``folder``. Each name is looked up: a folder with a million files is not
        listed.

        :raises CheckpointError: if a folder of the checkpoint, or an entry, is a link.
        """
        try:
            with self._open(check_path(folder).split("/") if folder else []) as opened:
                return {name for name in names if opened.look_at_no_link(check_path(name)) is not None}
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise self._explained(error, "look for entries in", folder) from error

    def folders(self, folder: str) -> Sequence[str]:
        """Names directly in ``folder``, without plain files and hidden names. A link is among them: listing it raises
        an error, whereas a link that was left out here would go unnoticed."""
        return self._names(folder, Folder.names_of_no_files)

    def _names(self, folder: str, names_of: Callable[[Folder], Sequence[str]]) -> Sequence[str]:
        names = check_path(folder).split("/") if folder else []
        try:
            with self._open(names) as opened:
                return [name for name in names_of(opened) if not name.startswith(".")]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._explained(error, "list", folder) from error

    def delete(self, path: str) -> bool:
        """Remove the file, or the empty folder, at ``path``. A folder that is not empty stays, and the result is False.
        If ``path`` is a link, the link is removed, never its target.

        :raises CheckpointError: if a folder on the way is a link.
        """
        above, name = _split(path)
        try:
            with self._open(above) as folder:
                found = folder.look(name)
                if found is None:
                    return False
                if stat.S_ISDIR(found.st_mode):
                    folder.remove_folder(name)
                else:
                    folder.remove(name)
                    folder.remove(_checksum(name))
                folder.sync()
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise self._explained(error, "delete", path) from error
        return True

    def delete_if(self, path: str, data: bytes) -> bool:
        """Remove the file at ``path`` if it holds ``data``. A removal by name alone could hit another file, so the file
        is first moved to a hidden name, compared there, and linked back if another one had come.

        :raises CheckpointError: if the entry is a link or not a regular file, or if a folder on the way is a link.
        """
        above, name = _split(path)
        aside = f".{name}.{uuid.uuid4().hex}.tmp"
        try:
            with self._open(above) as folder:
                if not _holds(folder, name, data):
                    return False
                folder.move(name, folder, aside)
                if _holds(folder, aside, data):
                    folder.remove(aside)
                    folder.remove(_checksum(name))
                    folder.sync()
                    return True
                # If another process has put yet another entry under the name, that entry stays; this one keeps its
                # hidden name.
                with contextlib.suppress(FileExistsError):
                    folder.link(aside, name)
                    folder.remove(aside)
                folder.sync()
                return False
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._explained(error, "delete", path) from error

    def delete_many(self, paths: Iterable[str]) -> None:
        """Remove entries of one folder, which is synced once, after the last removal."""
        targets = [_split(path) for path in paths]
        if not targets:
            return
        above = targets[0][0]
        try:
            with self._open(above) as folder:
                for _, name in targets:
                    folder.remove(name)
                    folder.remove(_checksum(name))
                folder.sync()
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._explained(error, "delete", "/".join([*above, f"{targets[0][1]} and more"])) from error

    def now_ms(self) -> int:
        """The file system's clock: on a file server the clock of the server, not of this machine."""
        try:
            with self._nearest() as folder:
                return folder.clock_ns() // 1_000_000
        except OSError as error:
            raise self._explained(error, "ask the clock at") from error

    def modified_ms(self, path: str) -> int | None:
        """When the entry was written, or None."""
        above, name = _split(path)
        try:
            with self._open(above) as folder:
                found = folder.look_at_no_link(name)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._explained(error, "look at", path) from error
        return None if found is None else found.st_mtime_ns // 1_000_000

    def unfit(self) -> str | None:
        """The reason if the file system caches what other hosts change, so that no checkpoint should lie here; else
        None."""
        return unfit(self._root)

    def scoped(self, folder: str) -> PosixStore:
        """The same store seen from ``folder``."""
        return PosixStore(self._top, above=(*self._above, *check_path(folder).split("/")))

    def check_own(self, path: str) -> None:
        """:raises CheckpointError: if ``path`` is a link, or a folder on the way to it is; hidden names are allowed."""
        *above, name = path.split("/")
        try:
            with self._open(above) as folder:
                folder.look_at_no_link(name)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise self._explained(error, "look at", path) from error

    def cut_off(self, path: str) -> Sequence[bytes]:
        """Return the contents of the hidden files that belong to that name: one of them may be a file that
        :meth:`delete_if` moved to compare it, in a process that was killed before it linked the file back."""
        above, name = _split(path)
        found = []
        try:
            with self._open(above) as folder:
                for hidden in sorted(folder.names()):
                    if is_cut_off(hidden, name):
                        with contextlib.suppress(FileNotFoundError), folder.file(hidden) as file:
                            found.append(file.read())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._explained(error, "look for what is hidden of", path) from error
        return found

    def litter(self) -> Sequence[Litter]:
        """Return the hidden files that are of no use; see :func:`find_litter`."""
        return find_litter(self._root, now_ms=self.now_ms())

    def is_litter(self, name: str) -> bool:
        """Whether a file of this name can be litter."""
        return is_litter(name)

    def move_litter(self, path: str, target: str) -> None:
        """Move a hidden file; see :func:`move_litter`."""
        move_litter(self._root, path, target)

    def _open(self, names: Iterable[str], *, make: bool = False) -> Folder:
        return Folder.open(self._top, (*self._above, *names), make=make)

    def _nearest(self) -> Folder:
        """Return this folder, or the nearest existing folder above it."""
        for count in range(len(self._above), -1, -1):
            with contextlib.suppress(FileNotFoundError):
                return Folder.open(self._top, self._above[:count])
        return Folder.open(next(folder for folder in self._top.parents if folder.is_dir()))

    def _link(self, folder: Folder, temporary: str, name: str) -> bool:
        try:
            folder.link(temporary, name)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in _NO_HARD_LINKS:
                raise CheckpointError(
                    f"{folder.path} is on a file system that cannot make hard links ({error.strerror}), so two "
                    "writers could not be kept apart there. Put the checkpoint on a local disk, or on a shared file "
                    "system that can."
                ) from error
            raise
        folder.sync()
        return True

    def _explained(self, error: OSError, doing: str, path: str = "") -> CheckpointError:
        return explained(error, f"{doing} {self._root / path} of checkpoint {self.location}")


def _holds(folder: Folder, name: str, data: bytes) -> bool:
    with folder.file(name) as file:
        return file.read(len(data) + 1) == data


def _split(path: str) -> tuple[Sequence[str], str]:
    """Split a path into the names of the folders on the way and the name of the entry."""
    *above, name = check_path(path).split("/")
    return above, name


def _checksum(name: str) -> str:
    """Name of the file in which Hadoop keeps the checksum of an entry."""
    return f".{name}.crc"
