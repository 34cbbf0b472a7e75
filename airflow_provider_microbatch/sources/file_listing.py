"""Which files lie under a source's path now. Knows nothing of what was planned before.

Hidden names (a leading ``.``, a leading ``_`` without ``=``, the ending ``._COPYING_``) are Spark's convention for
files that are not data or not finished; they are never listed, and hidden folders are never entered.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.file_path import (
    component_regex,
    expand_braces,
    has_wildcard,
    is_glob,
    literal_prefix,
    unescape,
)

_PARTITION = re.compile(r"[^=]+=.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as the listing saw it.

    :param path: absolute local path.
    :param size: bytes.
    :param mtime_ns: nanoseconds since the epoch.
    """

    path: str
    size: int
    mtime_ns: int


def is_hidden(name: str) -> bool:
    """True for names that Spark's file index leaves out."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def is_partition(name: str) -> bool:
    """True for a folder name of the form ``key=value``."""
    return _PARTITION.fullmatch(name) is not None


@dataclass(frozen=True)
class Listing:
    """A walk over the files under a path.

    :param path: absolute local path, may hold globs.
    :param recursive: enter every folder; else only ``key=value`` folders.
    :param file_name_pattern: a glob that file names must match; None for all.
    """

    path: str
    recursive: bool = False
    file_name_pattern: str | None = None
    _names: tuple[re.Pattern[str], ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        if self.file_name_pattern is not None:
            names = tuple(component_regex(one) for one in expand_braces(self.file_name_pattern))
            object.__setattr__(self, "_names", names)

    @property
    def base(self) -> str:
        """The longest prefix of the path without a glob: where partition columns and archive paths are counted from."""
        return literal_prefix(self.path)

    def files(self, wanted: Callable[[str], bool]) -> Iterator[FoundFile]:
        """Each regular file whose path is ``wanted``, once, in no order. Only these are stat'ed.

        A file that vanishes while the walk runs is left out. The base must exist.

        :raises SourceError: if the base or a folder below it cannot be listed.
        """
        if not is_glob(self.path):
            if self._is_file(self.base):
                yield from self._found(self.base, wanted)
            else:
                yield from self._walk(self.base, wanted, required=True)
            return
        if not Path(self.base).exists():
            raise SourceError(f"path {self.base!r} (of {self.path!r}) does not exist. Create it or correct the path.")
        once: set[str] = set()
        for pattern in expand_braces(self.path):
            for root in self._matches("/", pattern.split("/")[1:]):
                if root not in once:
                    once.add(root)
                    yield from self._below(root, wanted, once)

    def _below(self, root: str, wanted: Callable[[str], bool], once: set[str]) -> Iterator[FoundFile]:
        if self._is_file(root):
            if not is_hidden(root.rpartition("/")[2]):
                yield from self._found(root, wanted)
            return
        for found in self._walk(root, wanted, required=False):
            if found.path not in once:
                once.add(found.path)
                yield found

    def _matches(self, folder: str, parts: list[str]) -> Iterator[str]:
        """Paths that a glob's remaining components match below ``folder``. Wildcards do not match hidden names."""
        if not parts:
            yield folder
            return
        part, rest = parts[0], parts[1:]
        prefix = folder if folder.endswith("/") else folder + "/"
        if not has_wildcard(part):
            path = prefix + unescape(part)
            if rest or os.path.lexists(path):
                yield from self._matches(path, rest)
            return
        regex = component_regex(part)
        for entry in self._scan(folder, required=False):
            hidden = is_hidden(entry.name) and part[0] not in "._"
            if not hidden and regex.fullmatch(entry.name) and (not rest or entry.is_dir()):
                yield from self._matches(prefix + entry.name, rest)

    def _walk(self, folder: str, wanted: Callable[[str], bool], *, required: bool) -> Iterator[FoundFile]:
        for entry in self._scan(folder, required=required):
            name = entry.name
            if is_hidden(name):
                continue
            if entry.is_dir():
                if (self.recursive or is_partition(name)) and not _leads_back(entry):
                    yield from self._walk(entry.path, wanted, required=False)
            else:
                yield from self._found(entry.path, wanted)

    def _found(self, path: str, wanted: Callable[[str], bool]) -> Iterator[FoundFile]:
        name = path.rpartition("/")[2]
        if self._names and not any(regex.fullmatch(name) for regex in self._names):
            return
        if not wanted(path):
            return
        try:
            status = os.stat(path)  # noqa: PTH116 a Path for each of a million files doubles the time
        except FileNotFoundError:
            return
        except OSError as error:
            raise SourceError(f"cannot look at {path!r}: {error.strerror}. Give this user the right to it.") from error
        if stat.S_ISREG(status.st_mode):
            yield FoundFile(path, status.st_size, status.st_mtime_ns)

    def _scan(self, folder: str, *, required: bool) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                yield from entries
        except (FileNotFoundError, NotADirectoryError) as error:
            if required:
                raise SourceError(f"path {folder!r} does not exist. Create it or correct the path.") from error
        except OSError as error:
            raise SourceError(
                f"cannot list {folder!r}: {error.strerror}. Give this user read and search rights."
            ) from error

    @staticmethod
    def _is_file(path: str) -> bool:
        return Path(path).is_file()


def _leads_back(entry: os.DirEntry[str]) -> bool:
    """True for a symbolic link to a folder that the walk is in: following it would never end."""
    if not entry.is_symlink():
        return False
    target = os.path.realpath(entry.path)
    here = os.path.realpath(entry.path.rpartition("/")[0])
    return here == target or here.startswith(target.rstrip("/") + "/")
