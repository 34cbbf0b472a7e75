"""Find a planned file again: where it was, or in the archive, and whether it is still what was planned."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from airflow_provider_microbatch.exceptions import SourceChangedError, SourceError
from airflow_provider_microbatch.sources.file.cleaning import Cleaning, Entries
from airflow_provider_microbatch.sources.file.listing import is_partition
from airflow_provider_microbatch.sources.file.log import PlannedFile

_NAMED = 5
"""So many files of each kind a message names."""


class Presence(Enum):
    """What became of a planned file."""

    AS_PLANNED = "as planned"
    CHANGED = "changed"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Located:
    """A planned file and where it is now.

    :param planned: from the source log.
    :param presence: what became of it.
    :param base: the source's base, or the archive, whichever ``path`` lies under.
    :param path: where it is now; None if it is gone.
    :param found: what is there now, for messages.
    :param size: of what is there now, if that is not as planned, bytes.
    :param mtime_ns: likewise, nanoseconds since the epoch.
    """

    planned: PlannedFile
    presence: Presence
    base: str
    path: str | None = None
    found: str = ""
    size: int | None = None
    mtime_ns: int | None = None


def as_found(located: Iterable[Located]) -> list[list[object]]:
    """Path, size and mtime of those files that are not as planned, in order: what a read has read of them."""
    changed = (one for one in located if one.presence is Presence.CHANGED)
    return sorted([one.planned.path, one.size, one.mtime_ns] for one in changed)


def changed_meanwhile(read: Sequence[Sequence[object]], now: Sequence[Sequence[object]]) -> str:
    """That files are others than a read has read, in words; both as :func:`as_found`."""
    others = {str(path): (size, mtime) for path, size, mtime in now}
    named = sorted(others.items() ^ {(str(path), (size, mtime)) for path, size, mtime in read}, key=str)
    paths = list(dict.fromkeys(path for path, _ in named))[:_NAMED]
    return (
        f"planned file(s) changed while the batch was read: {', '.join(map(repr, paths))}. Run the batch again, which "
        "reads them as they are then; min_file_age keeps files back that are still being written."
    )


def archived_path(path: str, *, base: str, archive: str) -> str:
    """Where the archive keeps a file: below ``archive`` as it lay below ``base``; by its name if it is the base."""
    relative = os.path.relpath(path, base)
    return str(Path(archive, Path(path).name if relative == "." else relative))


def is_below(path: str, base: str) -> bool:
    """Whether an absolute path is ``base`` or lies below it, by its letters alone: ``base/../x`` does not."""
    return path == os.path.normpath(path) and (path == base or path.startswith(base.rstrip("/") + "/"))


def locate(file: PlannedFile, *, base: str, archives: Sequence[tuple[str, str]], given_up: bool = False) -> Located:
    """Look for the file where it was planned and, failing that, in the archives.

    :param base: the source's base.
    :param archives: base and archive folder of all that there have been.
    :param given_up: ``clean_source`` has taken it, or is about to: then the archives come first. Where it was there may
        be another file by now, of the same size and mtime even.
    """
    here = (base, file.path)
    kept = [
        (archive, archived_path(file.path, base=origin, archive=archive))
        for origin, archive in archives
        if is_below(file.path, origin)
    ]
    changed: Located | None = None
    for root, path in [*kept, here] if given_up else [here, *kept]:
        try:
            status = Path(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise SourceError(f"cannot look at {path!r}: {error.strerror}. Give this user the right to it.") from error
        if file.is_as_planned(status.st_size, status.st_mtime_ns):
            return Located(file, Presence.AS_PLANNED, root, path)
        found = _difference(file, status)
        changed = changed or Located(
            file, Presence.CHANGED, root, path, found, size=status.st_size, mtime_ns=status.st_mtime_ns
        )
    return changed or Located(file, Presence.GONE, base)


def _difference(file: PlannedFile, status: os.stat_result) -> str:
    if file.size is not None and file.size != status.st_size:
        return f"{file.size} bytes were planned, {status.st_size} are there"
    return f"mtime {file.timestamp_ms} ms was planned, {status.st_mtime_ns // 1_000_000} ms is there"


def usable(
    located: Iterable[Located], *, source: str, base: str, on_missing: str, on_changed: str, cleaned: Entries
) -> list[Located]:
    """The files that may be read.

    :param base: the source's base. Where it is away, so are its files, and they are not skipped.
    :param cleaned: log ids of entries that ``clean_source`` has cleaned: what is gone of these was taken by us, and no
        ``on_missing`` makes a batch go on without it.
    :raises SourceChangedError: naming files that are gone or changed, unless ``on_missing`` or ``on_changed`` allow it.
    """
    found: list[Located] = []
    gone: list[Located] = []
    taken: list[Located] = []
    changed: list[Located] = []
    for one in located:
        if one.presence is Presence.GONE:
            (taken if one.planned.log_id in cleaned else gone).append(one)
        else:
            found.append(one)
            if one.presence is Presence.CHANGED:
                changed.append(one)
    problems = []
    if taken:
        problems.append(
            f"{len(taken)} planned file(s) were archived or deleted by clean_source and are in no archive: "
            f"{_names(taken)}. Put them back where they were."
        )
    if gone and on_missing == "fail":
        problems.append(
            f"{len(gone)} planned file(s) vanished: {_names(gone)}. Restore them, "
            "or set on_missing='skip' to go on without them."
        )
    elif gone and (away := _away(gone, base, nothing_found=not found)) is not None:
        problems.append(away)
    if changed and on_changed == "fail":
        problems.append(
            f"{len(changed)} planned file(s) changed: {_names(changed)}. Restore what was planned, or set "
            "on_changed='read' to read what is there now; min_file_age keeps files back that are still being written."
        )
    if problems:
        raise SourceChangedError(f"source {source!r}: " + " ".join(problems))
    return found


def is_away(base: str) -> bool:
    """Whether the source's base is not there, or has nothing in it, as where a file system is not mounted."""
    try:
        if Path(base).is_file():
            return False
        with os.scandir(base) as entries:
            return next(entries, None) is None
    except OSError:
        return True


def _away(gone: Sequence[Located], base: str, *, nothing_found: bool) -> str | None:
    """Why files may be there although they are not seen: their folder is not there, or has nothing in it and none of
    the files was found, as where a file system is not mounted. What is skipped then would never be read."""
    for folder in dict.fromkeys(_folder(one.planned.path, base) for one in gone):
        try:
            with os.scandir(folder) as entries:
                empty = next(entries, None) is None
        except (FileNotFoundError, NotADirectoryError):
            return (
                f"path {folder!r} does not exist, and {len(gone)} planned file(s) may be in it: {_names(gone)}. "
                "on_missing='skip' does not skip them then. Mount or create it, or correct the path."
            )
        except OSError as error:
            raise SourceError(f"cannot list {folder!r}: {error.strerror}. Give this user the right to it.") from error
        if empty and nothing_found:
            return (
                f"all {len(gone)} planned file(s) are gone and {folder!r} is empty, as it is where a file system is "
                f"not mounted: {_names(gone)}. on_missing='skip' does not skip them then. Mount it; if all was really "
                "removed, put any file there, such as an empty '.keep'."
            )
    return None


def _folder(path: str, base: str) -> str:
    """The folder that a planned file's being there depends on: the base, or its own where that is the file itself, or
    where the source has another base by now."""
    return base if path != base and is_below(path, base) else os.path.dirname(path)  # noqa: PTH120 a text, as all here


def _names(files: Sequence[Located]) -> str:
    named = ", ".join(f"{one.planned.path!r}" + (f" ({one.found})" if one.found else "") for one in files[:_NAMED])
    return named + (f" and {len(files) - _NAMED} more" if len(files) > _NAMED else "")


def partition_groups(located: Iterable[Located], *, partitioned: bool) -> list[dict[str, object]]:
    """The files as the runtime reads them: ``{"base_path": …, "paths": […]}``, each group with one set of partition
    columns.

    Spark drops files whose folder has fewer partition columns than another's without a word, and refuses several
    roots; read apart, each group is whole. ``base_path`` is None for files without partition columns.

    :param partitioned: False for recursive sources, whose folders mean nothing.
    """
    groups: dict[tuple[str | None, tuple[str, ...]], list[str]] = {}
    for one in located:
        if one.path is None:
            continue
        root, keys = _partition_root(str(Path(one.path).parent), one.base) if partitioned else ("", ())
        groups.setdefault((root if keys else None, keys), []).append(one.path)
    return [{"base_path": root, "paths": paths} for (root, _), paths in groups.items()]


def _partition_root(folder: str, base: str) -> tuple[str, tuple[str, ...]]:
    """The folder that the ``key=value`` folders at the end of a path lie in, not above ``base``, and their keys."""
    keys: list[str] = []
    while folder != base and len(folder) > len(base):
        parent, name = os.path.split(folder)
        if not is_partition(name):
            break
        keys.append(name.partition("=")[0])
        folder = parent
    return folder, tuple(reversed(keys))


def deleted(files: Iterable[Located], cleaned: Cleaning, *, deletes: bool) -> str | None:
    """Why files that ``clean_source`` had to take cannot be read again; None if all of them are somewhere.

    :param cleaned: what it has taken, and is about to.
    :param deletes: whether it deletes what it takes now.
    """
    for one in files:
        path, number = one.planned.path, one.planned.log_id
        if one.presence is Presence.GONE:
            return f"{path!r} was deleted by clean_source"
        if (deletes and cleaned.is_taking(number)) or number in cleaned.deleting:
            return (
                f"{path!r} is being deleted by clean_source at this moment (if it was killed: a run with clean_source "
                "finishes it)"
            )
    return None
