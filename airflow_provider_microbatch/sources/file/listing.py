"""Lists the files under a source's path. Knows nothing of earlier plans.

Hidden names (a leading ``.``, a leading ``_`` without ``=``, the ending ``._COPYING_``) are Spark's convention for
files that are not data or not finished; they are never listed, and hidden folders are never entered.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.file.path import (
    component_regex,
    expand_braces,
    has_wildcard,
    is_glob,
    literal_prefix,
    unescape,
)
from airflow_provider_microbatch.sources.file.tables import is_sign_of_table, table_at, why_not

_AT_A_TIME = 1_000

Unseen = Callable[[Sequence[str]], Sequence[str]]
"""Takes some paths and returns those that are wanted."""

_Component = tuple[str, re.Pattern[str]]
"""Of a glob: its text, and what it matches."""

_PARTITION = re.compile(r"[^=]+=.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as the listing saw it.

    :param path: absolute local path, or ``s3a://bucket/key``.
    :param size: bytes.
    :param mtime_ns: nanoseconds since the epoch.
    :param etag: distinguishes an object from another one under its key; None for a file.
    """

    path: str
    size: int
    mtime_ns: int
    etag: str | None = None


def is_hidden(name: str) -> bool:
    """True for names that Spark's file index leaves out."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def is_partition(name: str) -> bool:
    """True for a folder name of the form ``key=value``."""
    return _PARTITION.fullmatch(name) is not None


def ends_before(folder: str, start: str | None) -> bool:
    """True if every path below ``folder`` sorts before ``start``; False for None.

    Paths compare as whole texts, as object stores compare keys. So a folder's own path tells nothing: ``a`` sorts
    before ``a-b/x``, and what is below it, ``a/…``, after it.
    """
    if start is None:
        return False
    below = folder.rstrip("/") + "/"
    return below < start and not start.startswith(below)


@lru_cache(maxsize=1_000)
def below(pattern: str) -> tuple[str, tuple[_Component, ...]]:
    """The longest prefix of a glob without a wildcard, and the components below it, each with what it matches."""
    base = literal_prefix(pattern)
    return base, tuple((part, component_regex(part)) for part in pattern.split("/")[len(base.split("/")) :])


@lru_cache(maxsize=4_096)
def _entered(pattern: str, folder: str, recursive: bool) -> tuple[_Component, ...] | None:
    """What a name in a folder has to match, of a glob, so that a walk takes it; None if no walk enters the folder."""
    base, parts = below(pattern)
    if folder != base and not folder.startswith(f"{base}/"):
        return None
    folders = folder.removeprefix(base).split("/")[1:]
    if len(folders) + 1 < len(parts) or not all(map(_matches, parts, folders)):
        return None
    if any(is_hidden(one) or not (recursive or is_partition(one)) for one in folders[len(parts) :]):
        return None
    return parts[len(folders) :]


def _matches(component: _Component, name: str) -> bool:
    part, regex = component
    if has_wildcard(part) and is_hidden(name) and part[0] not in "._":
        return False
    return regex.fullmatch(name) is not None


@dataclass(frozen=True)
class Listing:
    """A walk over the files under a path.

    :param path: absolute local path, may hold globs.
    :param recursive: enter every folder; else only ``key=value`` folders.
    :param file_name_pattern: a glob that file names must match; None for all.
    :param allow_table: do not refuse a folder that is a table of this package.
    """

    path: str
    recursive: bool = False
    file_name_pattern: str | None = None
    allow_table: bool = True
    _names: tuple[re.Pattern[str], ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        if self.file_name_pattern is not None:
            names = tuple(component_regex(one) for one in expand_braces(self.file_name_pattern))
            object.__setattr__(self, "_names", names)

    @property
    def base(self) -> str:
        """The longest prefix of the path without a glob: partition columns and archive paths are counted from there."""
        return literal_prefix(self.path)

    def selects(self, path: str) -> bool:
        """Whether a walk takes a file of this path where there is one, as far as its path says."""
        return any(self.takes(pattern, path) for pattern in expand_braces(self.path))

    def takes(self, pattern: str, path: str) -> bool:
        """Whether a walk by ``pattern``, which has no braces, takes a file of this path."""
        base, parts = below(pattern)
        if path == base:
            return not parts and self.is_named(base.rpartition("/")[2])
        return next(self.taken(pattern, [path]))

    def taken(self, pattern: str, paths: Iterable[str]) -> Iterator[bool]:
        """Of each path below the longest prefix of ``pattern``, whether a walk takes it. Paths of one folder in a row
        cost one look at the folder: keys of a bucket come folder by folder, a million of them."""
        last, rest = None, None
        for path in paths:
            folder, _, name = path.rpartition("/")
            if folder != last:
                last, rest = folder, _entered(pattern, folder, self.recursive)
            # A notification may name a key that ends in a slash: to Spark that is a folder, and all that lies below it.
            yield (
                rest is not None
                and name != ""
                and not ((name[0] in "._" or name[-1] == "_") and is_hidden(name))
                and (not rest or all(_matches(one, name) for one in rest))
                and (not self._names or self.is_named(name))
            )

    def tells_table(self, path: str) -> bool:
        """Whether a path below the source is of what only a table has, if tables must not be read."""
        bases = () if self.allow_table else (below(pattern)[0] for pattern in expand_braces(self.path))
        below_it = ((base, path.removeprefix(f"{base}/")) for base in bases if path.startswith(f"{base}/"))
        return any(table_at(base, rest.split("/")) for base, rest in below_it)

    def files(self, unseen: Unseen, *, start: str | None = None) -> Iterator[FoundFile]:
        """Yield each regular file whose path is ``unseen``, once, in no order. Only these files are stat'ed.

        A file that vanishes while the walk runs is left out. The base must exist.

        :param unseen: takes some paths and returns those that are wanted. Called for a thousand paths at a time: for a
            million files, a call for each would take too much time, and a single call too much memory.
        :param start: leave out paths that sort before this one, and do not open folders that hold only such paths.
        :raises SourceError: if the base or a folder below it cannot be listed, or is a table and must not be.
        """
        if not is_glob(self.path):
            if Path(self.base).is_file():
                yield from self._found([self.base], unseen)
            else:
                yield from self._walk(self.base, unseen, start, required=True)
            return
        if not Path(self.base).exists():
            raise SourceError(f"path {self.base!r} (of {self.path!r}) does not exist. Create it or correct the path.")
        patterns = expand_braces(self.path)
        if len(patterns) == 1:
            yield from self._matching(patterns[0], unseen, start)
            return
        once: set[str] = set()
        for pattern in patterns:
            for found in self._matching(pattern, unseen, start):
                if found.path not in once:
                    once.add(found.path)
                    yield found

    def _matching(self, pattern: str, unseen: Unseen, start: str | None) -> Iterator[FoundFile]:
        """Yield files that a glob without braces matches, and files below folders that it matches."""
        files: list[str] = []
        for path, is_folder in self._matches("/", pattern.split("/")[1:], start):
            if is_folder:
                yield from self._walk(path, unseen, start, required=False)
            elif (start is None or path >= start) and not is_hidden(path.rpartition("/")[2]):
                files.append(path)
                if len(files) >= _AT_A_TIME:
                    yield from self._found(files, unseen)
                    files = []
        yield from self._found(files, unseen)

    def _matches(self, folder: str, parts: list[str], start: str | None) -> Iterator[tuple[str, bool]]:
        """Yield the paths that a glob's components match below ``folder``, and whether they are folders. Wildcards do
        not match hidden names. Folders that end before ``start`` are left out."""
        part, rest = parts[0], parts[1:]
        prefix = folder if folder.endswith("/") else folder + "/"
        if not has_wildcard(part):
            path = prefix + unescape(part)
            if rest:
                if not ends_before(path, start):
                    yield from self._matches(path, rest, start)
            elif os.path.lexists(path):
                yield path, Path(path).is_dir()
            return
        regex = component_regex(part)
        for entry in self._scan(folder, required=False):
            hidden = is_hidden(entry.name) and part[0] not in "._"
            if hidden:
                self._check_no_table(folder, entry.name)
            if not hidden and regex.fullmatch(entry.name):
                path = prefix + entry.name
                if not rest:
                    yield path, entry.is_dir()
                elif not ends_before(path, start) and entry.is_dir():
                    yield from self._matches(path, rest, start)

    def _walk(self, folder: str, unseen: Unseen, start: str | None, *, required: bool) -> Iterator[FoundFile]:
        if ends_before(folder, start):
            return
        if start is not None and folder > start:
            start = None
        files: list[str] = []
        for entry in self._scan(folder, required=required):
            name = entry.name
            if (name[0] in "._" or name[-1] == "_") and is_hidden(name):
                self._check_no_table(folder, name)
                continue
            if entry.is_dir():
                if (self.recursive or is_partition(name)) and not _leads_back(entry):
                    yield from self._walk(entry.path, unseen, start, required=False)
            elif start is None or entry.path >= start:
                files.append(entry.path)
                if len(files) >= _AT_A_TIME:
                    yield from self._found(files, unseen)
                    files = []
        yield from self._found(files, unseen)

    def _check_no_table(self, folder: str, hidden: str) -> None:
        """Refuse a table by the names that the walk meets anyway, at no extra cost."""
        if not self.allow_table and is_sign_of_table(folder, hidden):
            raise SourceError(why_not(folder))

    def _found(self, paths: Sequence[str], unseen: Unseen) -> Iterator[FoundFile]:
        if self._names:
            paths = [path for path in paths if self.is_named(path.rpartition("/")[2])]
        for path in unseen(paths):
            try:
                status = os.stat(path)  # noqa: PTH116 a Path for each of a million files doubles the time
            except FileNotFoundError:
                continue
            except OSError as error:
                raise SourceError(
                    f"cannot look at {path!r}: {error.strerror}. Give this user the right to it."
                ) from error
            if stat.S_ISREG(status.st_mode):
                yield FoundFile(path, status.st_size, status.st_mtime_ns)

    def is_named(self, name: str) -> bool:
        """Whether ``file_name_pattern`` takes a file of this name."""
        return not self._names or any(regex.fullmatch(name) for regex in self._names)

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


def _leads_back(entry: os.DirEntry[str]) -> bool:
    """True for a symbolic link to a folder that the walk is in: following it would never end."""
    if not entry.is_symlink():
        return False
    target = os.path.realpath(entry.path)
    here = os.path.realpath(entry.path.rpartition("/")[0])
    return here == target or here.startswith(target.rstrip("/") + "/")
