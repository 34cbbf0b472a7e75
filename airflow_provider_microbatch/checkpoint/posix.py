"""A checkpoint on a POSIX file system: atomic by hard link, durable by fsync."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from airflow_provider_microbatch.checkpoint.file_system import unfit
from airflow_provider_microbatch.checkpoint.store import Store, check_path
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.settings import make_private_folder, open_private_file

_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


class PosixStore(Store):
    """A folder. An entry is linked into place when its bytes are on disk, so nobody ever sees half of one.

    A link, unlike a rename, fails when the name is taken: that is the put-if-absent. File systems without hard links
    are refused, because every other way to write is either not atomic or overwrites.

    Files and folders are this user's alone, or the group's too as ``[microbatch] group_access`` says; those that are
    there already stay as they are.

    :param root: absolute path of the folder; it is made by the first write.
    :param top: where the checkpoint begins, if ``root`` is a folder of it. What is missing above is made as the umask
        says: it is shared with others, such as a table's readers.
    """

    def __init__(self, root: str | Path, *, top: Path | None = None) -> None:
        self._root = Path(root)
        self._top = self._root if top is None else top
        if not self._root.is_absolute():
            raise CheckpointError(f"checkpoint path {str(root)!r} is relative; give an absolute one.")

    @property
    def location(self) -> str:
        """The folder's path."""
        return str(self._root)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write ``data`` at ``path`` unless something is there; see :meth:`Store.put_if_absent`."""
        target = self._resolve(path)
        try:
            self._check_no_link(target.parent)
            if target.exists():
                return False
            self._make_folder(target.parent)
            temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
            try:
                self._write(temporary, data)
                # A Hadoop checksum left by an entry that was removed by hand would make Spark refuse the new one.
                target.with_name(f".{target.name}.crc").unlink(missing_ok=True)
                return self._link(temporary, target)
            finally:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
        except OSError as error:
            raise self._explained(error, f"write {target}") from error

    def get(self, path: str) -> bytes | None:
        """The bytes at ``path``, or None.

        :raises CheckpointError: if it is a link, or a folder on the way is: it may lead to anybody's secrets.
        """
        target = self._resolve(path)
        try:
            with self._opened(target) as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._explained(error, f"read {target}") from error

    def get_range(self, path: str, start: int, size: int) -> bytes | None:
        """``size`` bytes at ``path`` from ``start`` on, or None."""
        target = self._resolve(path)
        try:
            with self._opened(target) as file:
                file.seek(start)
                return file.read(size)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._explained(error, f"read {target}") from error

    def list(self, folder: str) -> list[str]:
        """Names directly in ``folder``. Hidden ones (unfinished writes, Hadoop's checksums) are left out.

        :raises CheckpointError: if a folder of the checkpoint is a link: what is listed is deleted at times.
        """
        target = self._resolve(folder) if folder else self._root
        try:
            self._check_no_link(target)
            return [entry.name for entry in target.iterdir() if not entry.name.startswith(".")]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._explained(error, f"list {target}") from error

    def delete(self, path: str) -> bool:
        """Remove the file, or the empty folder, at ``path``. A folder that is not empty stays: False. Of a link the
        link goes, never what it leads to.

        :raises CheckpointError: if a folder on the way is a link.
        """
        target = self._resolve(path)
        try:
            self._check_no_link(target.parent)
            if target.is_dir() and not target.is_symlink():
                target.rmdir()
            else:
                target.unlink()
                target.with_name(f".{target.name}.crc").unlink(missing_ok=True)
            self._sync_folder(target.parent)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise self._explained(error, f"delete {target}") from error
        return True

    def delete_many(self, paths: Iterable[str]) -> None:
        """Remove entries of one folder, which is synced once, after the last."""
        targets = [self._resolve(path) for path in paths]
        try:
            for folder in {target.parent for target in targets}:
                self._check_no_link(folder)
            for target in targets:
                target.unlink(missing_ok=True)
                target.with_name(f".{target.name}.crc").unlink(missing_ok=True)
            if targets:
                self._sync_folder(targets[0].parent)
        except OSError as error:
            raise self._explained(error, f"delete {targets[0]} and more") from error

    def now_ms(self) -> int:
        """The file system's clock: of a file server that of the server, not of this machine."""
        folder = next(folder for folder in (self._root, *self._root.parents) if folder.is_dir())
        try:
            return self._mtime_of_new_file(folder) // 1_000_000
        except OSError as error:
            raise self._explained(error, f"ask the clock of {folder}") from error

    def modified_ms(self, path: str) -> int | None:
        """When the entry was written, or None."""
        target = self._resolve(path)
        try:
            self._check_no_link(target)
            return target.lstat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._explained(error, f"look at {target}") from error

    def unfit(self) -> str | None:
        """Why no checkpoint should lie here: the file system is one that caches what other hosts have changed."""
        return unfit(self._root)

    def scoped(self, folder: str) -> PosixStore:
        """The same store seen from ``folder``."""
        return PosixStore(self._resolve(folder), top=self._top)

    def _resolve(self, path: str) -> Path:
        return self._root / check_path(path)

    def check_no_link(self, path: str) -> None:
        """:raises CheckpointError: if ``path`` is a link, or a folder on the way to it is; hidden names are allowed."""
        self._check_no_link(self._root / path)

    def _check_no_link(self, folder: Path) -> None:
        """Whoever can write the checkpoint can put a link into it. Followed, a purge of old entries would empty the
        folder that it leads to. The checkpoint's own folder, which the user names, may be one.

        :raises CheckpointError: for a link at ``folder`` or between it and the top.
        """
        below = self._top
        for name in folder.relative_to(self._top).parts:
            below = below / name
            if below.is_symlink():
                raise CheckpointError(
                    f"{below} is a link. A checkpoint has none below its own folder, so nothing was done "
                    f"through it. Look who put it there (it leads to {str(below.readlink())!r}), and remove it."
                )

    def _opened(self, target: Path) -> BinaryIO:
        """An entry, to read it."""
        self._check_no_link(target)
        # Nor through one that was put there at this moment.
        return os.fdopen(os.open(target, os.O_RDONLY | os.O_NOFOLLOW), "rb")

    def _make_folder(self, folder: Path) -> None:
        """Make ``folder`` and what is missing above it, each durable: a folder that a crash takes away would take the
        entries in it along."""
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        if folder == self._top or self._top in folder.parents:
            make_private_folder(folder)
        else:
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
        self._sync_folder(folder.parent)

    @staticmethod
    def _mtime_of_new_file(folder: Path) -> int:
        """Modification time of a file made now, nanoseconds. It gets no name where the file system can do that (Linux),
        so that asking leaves no trace, not even in the folder's own time."""
        unnamed = getattr(os, "O_TMPFILE", None)
        if unnamed is not None:
            with contextlib.suppress(OSError):
                descriptor = os.open(folder, unnamed | os.O_RDWR, 0o600)
                try:
                    return os.fstat(descriptor).st_mtime_ns
                finally:
                    os.close(descriptor)
        named = folder / f".clock.{uuid.uuid4().hex}.tmp"
        try:
            named.touch(mode=0o600, exist_ok=False)
            return named.stat().st_mtime_ns
        finally:
            named.unlink(missing_ok=True)

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        with os.fdopen(open_private_file(path), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def _link(self, temporary: Path, target: Path) -> bool:
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in _NO_HARD_LINKS:
                raise CheckpointError(
                    f"{target.parent} is on a file system that cannot make hard links ({error.strerror}), so two "
                    "writers could not be kept apart there. Put the checkpoint on a local disk, or on a shared file "
                    "system that can."
                ) from error
            raise
        self._sync_folder(target.parent)
        return True

    @staticmethod
    def _sync_folder(folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _explained(self, error: OSError, doing: str) -> CheckpointError:
        if isinstance(error, PermissionError):
            advice = f"user id {os.geteuid()} has no permission. Give it the folder, or run as its owner."
        elif isinstance(error, (NotADirectoryError, IsADirectoryError, FileExistsError)):
            advice = f"{error.strerror}. A checkpoint needs a folder of its own; choose another path."
        else:
            advice = f"{error.strerror or error}."
        return CheckpointError(f"cannot {doing} of checkpoint {self.location}: {advice}")
