"""Finds a planned file again, in its place or in the archive, and tells whether it is still the planned one."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from airflow_provider_microbatch.exceptions import SourceChangedError
from airflow_provider_microbatch.sources.file.cleaning import Cleaning, Entries
from airflow_provider_microbatch.sources.file.listing import FoundFile, is_partition
from airflow_provider_microbatch.sources.file.log import PlannedFile
from airflow_provider_microbatch.sources.file.place import Place

log = logging.getLogger(__name__)

_NAMED = 5
"""Number of files of each kind that a message names."""


class Presence(Enum):
    """The state of a planned file."""

    AS_PLANNED = "as planned"
    CHANGED = "changed"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Located:
    """A planned file and its present place.

    :param planned: the file in the source log.
    :param presence: state of the file.
    :param base: the source's base, or the archive, whichever ``path`` lies under.
    :param path: its present path; None if it is gone.
    :param found: description of the present file, for messages.
    :param size: size of the present file in bytes, if it is not as planned.
    :param mtime_ns: mtime of the present file, nanoseconds since the epoch, if it is not as planned.
    :param etag: ETag of the present object, if it is not as planned.
    """

    planned: PlannedFile
    presence: Presence
    base: str
    path: str | None = None
    found: str = ""
    size: int | None = None
    mtime_ns: int | None = None
    etag: str | None = None


def as_found(located: Iterable[Located]) -> list[list[object]]:
    """Path, size, mtime and, for objects, ETag of the files that are not as planned, in order: the versions that a read
    has read."""
    return sorted(
        _version(one.planned.path, one.size, one.mtime_ns, one.etag)
        for one in located
        if one.presence is Presence.CHANGED
    )


def version_of(file: FoundFile) -> list[object]:
    """How :func:`as_found` describes a file that is read as it is now."""
    return _version(file.path, file.size, file.mtime_ns, file.etag)


def _version(path: str, size: int | None, mtime_ns: int | None, etag: str | None) -> list[object]:
    return [path, size, mtime_ns, *([] if etag is None else [etag])]


def _changed_meanwhile(read: Sequence[Sequence[object]], now: Sequence[Sequence[object]]) -> str:
    """Return a message that files differ from the ones that were read; both arguments as :func:`as_found`."""
    others = {(str(path), *what) for path, *what in now} ^ {(str(path), *what) for path, *what in read}
    named = sorted(others, key=str)
    paths = list(dict.fromkeys(path for path, *_ in named))[:_NAMED]
    return (
        f"planned file(s) changed while the batch was read: {', '.join(map(repr, paths))}. Run the batch again, which "
        "reads them as they are then; min_file_age keeps files back that are still being written."
    )


def not_as_read(files: Sequence[Located], told: Mapping[str, Any]) -> str | None:
    """The reason, in words, why a read has not read the present files; None if it has.

    :param files: the present files of its range.
    :param told: the reader's result.
    """
    left_out = set(told["left_out"])
    back = [one.planned.path for one in files if one.planned.path in left_out]
    if back or told["files"] < len(files):
        named = ", ".join(map(repr, back[:_NAMED])) or f"{len(files)} are there, {told['files']} were read"
        return (
            f"{len(back) or len(files) - told['files']} planned file(s) were missing when the batch was read and are "
            f"there now: {named}. Run the batch again, which reads them."
        )
    now = as_found(files)
    if (read := told.get("as_found", now)) != now:
        return _changed_meanwhile(read, now)
    return None


def archived_path(path: str, *, base: str, archive: str) -> str:
    """The path of a file in the archive: below ``archive`` as it lay below ``base``; its name if it is the base."""
    relative = path.rpartition("/")[2] if path == base else path.removeprefix(base.rstrip("/") + "/")
    return f"{archive.rstrip('/')}/{relative}"


def is_below(path: str, base: str) -> bool:
    """Whether an absolute path is ``base`` or lies below it, by its text alone: ``base/../x`` does not."""
    parts = (path.partition("://")[2] or path.removeprefix("/")).split("/")
    return not any(part in ("", ".", "..") for part in parts) and (
        path == base or path.startswith(base.rstrip("/") + "/")
    )


def folder_of(path: str, base: str) -> str:
    """The folder whose presence decides whether a planned file can be there: the base; or the file's own folder if the
    base is the file itself, or if the source has another base by now."""
    return base if path != base and is_below(path, base) else path.rpartition("/")[0] or "/"


def locate(
    file: PlannedFile,
    *,
    look: Callable[[str], FoundFile | None],
    base: str,
    archives: Sequence[tuple[str, str]],
    given_up: bool = False,
    taken: bool = False,
) -> Located:
    """Look for the file where it was planned and, failing that, in the archives.

    :param look: returns the file at a path; None if there is none.
    :param base: the source's base.
    :param archives: pairs of base and archive folder, all that were ever used.
    :param given_up: ``clean_source`` has taken the file, or is about to: then the archives are searched first, since
        another file may lie in its place by now, even of the same size and mtime; an object that bears the planned ETag
        is no other.
    :param taken: ``clean_source`` has taken the file: a file in its place that is not as planned is another one, which
        must not be read for it. What the batch has published would be lost for the rows of that one.
    """
    here = (base, file.path)
    kept = [
        (archive, archived_path(file.path, base=origin, archive=archive))
        for origin, archive in archives
        if is_below(file.path, origin)
    ]
    changed: Located | None = None
    for root, path in [*kept, here] if given_up else [here, *kept]:
        found = look(path)
        if found is None:
            continue
        if _is_copy(file, found, look) if root != base else _is_planned(file, found):
            return Located(file, Presence.AS_PLANNED, root, path)
        if taken and root == base:
            return changed or Located(file, Presence.GONE, base, found="another file lies there")
        changed = changed or Located(
            file,
            Presence.CHANGED,
            root,
            path,
            _difference(file, found),
            size=found.size,
            mtime_ns=found.mtime_ns,
            etag=found.etag,
        )
    return changed or Located(file, Presence.GONE, base)


def _is_planned(file: PlannedFile, found: FoundFile) -> bool:
    return file.is_as_planned(found.size, found.mtime_ns, found.etag)


def _is_copy(file: PlannedFile, found: FoundFile, look: Callable[[str], FoundFile | None]) -> bool:
    """Whether what is in an archive is the file. A copy of an object has a time of its own, and may have another ETag,
    so that it is known by its size. Another object may have that too: it is not read while the planned one, with its
    ETag, lies in its own place."""
    if file.etag is None:
        return _is_planned(file, found)
    if file.size != found.size or file.etag == found.etag:
        return file.size == found.size
    there = look(file.path)
    return there is None or not _is_planned(file, there)


def _difference(file: PlannedFile, found: FoundFile) -> str:
    if file.size is not None and file.size != found.size:
        return f"{file.size} bytes were planned, {found.size} are there"
    if file.etag is not None and found.etag is not None:
        return f"ETag {file.etag} was planned, {found.etag} is there"
    return f"mtime {file.timestamp_ms} ms was planned, {found.mtime_ns // 1_000_000} ms is there"


def usable(
    located: Iterable[Located],
    *,
    source: str,
    base: str,
    on_missing: str,
    on_changed: str,
    cleaned: Entries,
    place: Place,
) -> list[Located]:
    """The files that may be read.

    :param base: the source's base.
    :param cleaned: log ids of entries that ``clean_source`` has cleaned: their missing files were taken by
        clean_source, and no ``on_missing`` makes a batch go on without them.
    :param place: says how such files are put back; and of files that are gone whether they may exist although they are
        not visible, since then they are not skipped; or never were files, since then no batch can wait for them.
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
            f"{_names(taken)}. {place.put_back}"
        )
    if on_missing == "fail" and (marks := [one for one in gone if place.is_mark(one.planned)]):
        log.warning(
            "source %r: %s planned object(s) have keys that end in a slash, which a listing does not show. They mark "
            "folders, are no data, and are left out: %s. If they are data, copy them to other keys.",
            source, len(marks), _names(marks),
        )  # fmt: skip
        gone = [one for one in gone if one not in marks]
    if gone and on_missing == "fail":
        problems.append(
            f"{len(gone)} planned file(s) vanished: {_names(gone)}. Restore them, "
            "or set on_missing='skip' to go on without them."
        )
    elif gone:
        paths = [one.planned.path for one in gone]
        why = place.why_away(paths, base=base, named=_names(gone), nothing_found=not found)
        problems += [] if why is None else [why]
    if changed and on_changed == "fail":
        problems.append(
            f"{len(changed)} planned file(s) changed: {_names(changed)}. Restore what was planned, or set "
            "on_changed='read' to read what is there now; min_file_age keeps files back that are still being written."
        )
    if problems:
        raise SourceChangedError(f"source {source!r}: " + " ".join(problems))
    return found


def _names(files: Sequence[Located]) -> str:
    named = ", ".join(f"{one.planned.path!r}" + (f" ({one.found})" if one.found else "") for one in files[:_NAMED])
    return named + (f" and {len(files) - _NAMED} more" if len(files) > _NAMED else "")


def partition_groups(located: Iterable[Located], *, partitioned: bool) -> list[dict[str, object]]:
    """The files as the runtime reads them: ``{"base_path": …, "paths": […]}``, each group with one set of partition
    columns.

    Spark silently drops files whose folder has fewer partition columns than another's, and refuses several roots; read
    separately, each group is complete. ``base_path`` is None for files without partition columns.

    :param partitioned: False for recursive sources, whose folders have no meaning.
    """
    groups: dict[tuple[str | None, tuple[str, ...]], list[str]] = {}
    for one in located:
        if one.path is None:
            continue
        root, keys = partition_root(one.path, one.base) if partitioned else (None, ())
        groups.setdefault((root, keys), []).append(one.path)
    return [{"base_path": root, "paths": paths} for (root, _), paths in groups.items()]


def partition_root(path: str, base: str) -> tuple[str | None, tuple[str, ...]]:
    """The folder that contains the ``key=value`` folders right above a file, not above ``base``, and the keys. None if
    there are no such folders."""
    folder, keys = path.rpartition("/")[0] or "/", list[str]()
    while folder != base and len(folder) > len(base):
        parent, name = os.path.split(folder)
        if not is_partition(name):
            break
        keys.append(name.partition("=")[0])
        folder = parent
    return folder if keys else None, tuple(reversed(keys))


def deleted(files: Iterable[Located], cleaned: Cleaning, *, deletes: bool) -> str | None:
    """The reason why files that ``clean_source`` has taken cannot be read again; None if all of them are somewhere.

    :param cleaned: the entries that it has taken, and is about to take.
    :param deletes: whether it deletes the files that it takes now.
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
