"""Settings of the deployment, handed down by the Airflow face: the layers below import no Airflow.

Where nothing hands settings down (a test, a script), the strictest settings hold.
"""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_microbatch.exceptions import DefinitionError

SECTION = "microbatch"
"""The section of Airflow's configuration."""

TRUSTED_MODULES = "trusted_modules"
TRUSTED_SERVERS = "trusted_servers"
GROUP_ACCESS = "group_access"

_GROUP_BITS = {"none": (0o000, 0o000), "read": (0o040, 0o050), "write": (0o060, 0o070)}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a deployment.

    :param trusted_modules: modules, or packages with all below them, whose classes may be loaded because a checkpoint
        or a trigger names them.
    :param trusted_servers: addresses of servers that may be spoken to because a checkpoint names them.
    :param group_access: what the group of their folder may do with checkpoints and stages: ``none``, ``read`` or
        ``write``. Others may never do anything.
    """

    trusted_modules: tuple[str, ...] = ()
    trusted_servers: tuple[str, ...] = ()
    group_access: str = "none"

    def __post_init__(self) -> None:
        if self.group_access not in _GROUP_BITS:
            known = ", ".join(_GROUP_BITS)
            raise DefinitionError(
                f"[{SECTION}] {GROUP_ACCESS} is {self.group_access!r:.100} in Airflow's configuration; it must be one "
                f"of {known}."
            )

    @property
    def file_mode(self) -> int:
        """Mode of a file of a checkpoint."""
        return 0o600 | _GROUP_BITS[self.group_access][0]

    @property
    def folder_mode(self) -> int:
        """Mode of a folder of a checkpoint, or of stages."""
        return 0o700 | _GROUP_BITS[self.group_access][1]


_given: Callable[[], Settings] = Settings


def make_private_folder(path: str | Path, *, dir_fd: int | None = None) -> None:
    """Make one folder for this user, and for the group as the settings say. An existing folder is left as it is.

    :param dir_fd: an open folder that a relative ``path`` begins at.
    :raises OSError: if the folder cannot be made.
    """
    if _is_there(path, dir_fd):
        return
    # The folder gets its name when it has its mode: a process killed in between leaves nothing that others take for it.
    path = Path(path)
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    os.mkdir(hidden, 0o700, dir_fd=dir_fd)
    try:
        _set_mode(hidden, dir_fd)
        os.rename(hidden, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)  # over an empty folder at most: of another maker
    except OSError:
        if not _is_there(path, dir_fd):
            raise
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(hidden, dir_fd=dir_fd)


def _set_mode(folder: Path, dir_fd: int | None) -> None:
    """Set the mode by hand: the umask may take the group's bits. A folder keeps the group that its parent gives it."""
    # O_NOFOLLOW: the mode of the folder itself is set, not of a link's target if a link was put in its place.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=dir_fd)
    try:
        os.fchmod(descriptor, settings().folder_mode | (os.fstat(descriptor).st_mode & stat.S_ISGID))
    finally:
        os.close(descriptor)


def _is_there(path: str | Path, dir_fd: int | None) -> bool:
    try:
        os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def is_private(folder: Path) -> bool:
    """Whether the path is a folder of this user, without access for the group and others."""
    try:
        found = folder.lstat()  # a link belongs to its maker, wherever it leads
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def open_private_file(path: str | Path, *, dir_fd: int | None = None) -> int:
    """A descriptor for writing a new file, whose mode is as the settings say.

    :param dir_fd: an open folder that a relative ``path`` begins at.
    :raises FileExistsError: if something exists at the path.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=dir_fd)
    os.fchmod(descriptor, settings().file_mode)
    return descriptor


def settings() -> Settings:
    """The settings that hold now."""
    return _given()


def hand_down(given: Callable[[], Settings]) -> None:
    """Take the settings from ``given``, which is called each time that a setting is needed."""
    global _given
    _given = given
