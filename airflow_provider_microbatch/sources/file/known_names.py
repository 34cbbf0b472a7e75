"""Finds files that lie under the names of files that were read already, and are different files: no batch reads them.

A file is identified by its path, as in Spark: data that is appended to a file that was read, or a file that lands under
its name later, would silently be read by no batch. Looking at all names at each plan would be too slow, so a plan looks
at the likely ones: the newest of the source log, and, where ``clean_source`` leaves no earlier file in place, those
that the plan lists anyway. ``microbatch check`` looks at all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from airflow_provider_microbatch.exceptions import CorruptEntryError, SourceError
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.cleaning import Cleaning
from airflow_provider_microbatch.sources.file.listing import FoundFile, Unseen
from airflow_provider_microbatch.sources.file.log import PlannedFile, SourceLog, log_id
from airflow_provider_microbatch.sources.file.place import Look, Place
from airflow_provider_microbatch.sources.file.present import version_of
from airflow_provider_microbatch.sources.file.seen import SeenFiles
from airflow_provider_microbatch.sources.intervals import CommittedRange

log = logging.getLogger(__name__)

Committed = Callable[[str], Iterable[CommittedRange]]

RECENT_ENTRIES = 2
"""Number of entries of the source log whose files each plan and question looks at."""

_AT_A_TIME = 1_000
_NAMED = 5
_PAUSE = 60.0  # seconds
_looked: dict[str, float] = {}
"""When the next look is due, by address of the source log."""
_MOST_SAID = 1_000
_said: dict[str, FoundFile] = {}
"""The files that this process has already warned of, by path: a trigger asks again and again."""


def is_due(location: str) -> bool:
    """Whether a question that is asked repeatedly should look at the names now; it should once in a while.

    :param location: address of the source log.
    """
    now = time.monotonic()
    if now < _looked.get(location, now):
        return False
    _looked[location] = now + _PAUSE
    return True


class KnownNames:
    """Collects the listed files that have the name of a file that was planned before.

    :param source_log: the source log.
    :param cleaned: the entries that ``clean_source`` has taken.
    :param place: place of the files.
    :param seen: what the source log has.
    :param source: the source's definition.
    :param committed: returns the ranges of a lane's committed batches, newest first.
    """

    def __init__(
        self,
        source_log: SourceLog,
        cleaned: Cleaning,
        place: Place,
        *,
        seen: SeenFiles,
        source: FileSource,
        committed: Committed,
    ) -> None:
        self._log = source_log
        self._cleaned = cleaned
        self._place = place
        self._committed = committed
        self._latest = seen.latest
        self._rereads = source.on_changed == "read"
        # A listed file that is younger than all planned ones is another file than was planned. Without clean_source
        # none is looked at, since any number of them may be files that were read.
        self._newest_ms = seen.newest_ms if source.clean_source else None
        self._listed: list[str] = []

    def watched(self, unseen: Unseen) -> Unseen:
        """Wrap ``unseen`` so that the paths that are already seen are noted."""
        if self._newest_ms is None:
            return unseen

        def ask(paths: Sequence[str]) -> Sequence[str]:
            wanted = unseen(paths)
            if len(wanted) < len(paths) and len(self._listed) < self._place.lookups:
                new = set(wanted)
                self._listed += [path for path in paths if path not in new]
            return wanted

        return ask

    def warn(self, source: str) -> None:
        """Log which of the noted files differ from the planned ones, each once in a process.

        :param source: name of the source.
        """
        new: dict[bool, list[str]] = {}
        try:
            found = list(self._others())
        except SourceError as error:
            log.debug("nobody looks for changed files of source %r this time: %s", source, error)
            return
        for one, may_be_read in found:
            if _said.get(one.path) != one:
                if len(_said) > _MOST_SAID:
                    _said.clear()
                _said[one.path] = one
                new.setdefault(may_be_read, []).append(one.path)
        for may_be_read, paths in new.items():
            log.warning("source %r: %s", source, not_read_by_any(paths, rereads=may_be_read))

    def _others(self) -> Iterator[tuple[FoundFile, bool]]:
        """The files, and whether a batch may have read what has changed in it, or may read it yet: where
        ``clean_source`` has taken the planned file, none ever does."""
        recent = list(self._recent())
        for file, found in _differing(recent, self._cleaned, self._place, self._committed):
            yield found, self._rereads and not self._cleaned.has_taken(file.log_id, file.path)
        # The log is not searched for these: no planned file is younger than the youngest planned one.
        if self._newest_ms is None:
            return
        looked = {file.path for file in recent}
        listed = [path for path in self._listed[: self._place.lookups] if path not in looked]
        look = self._place.looks(listed)
        for path in listed:
            there = _found(look, path)
            if there is not None and there.mtime_ns // 1_000_000 > self._newest_ms:
                yield there, False

    def _recent(self) -> Iterator[PlannedFile]:
        left = self._place.lookups
        for number in range(self._latest, max(self._latest - RECENT_ENTRIES, -1), -1):
            try:
                files = self._log.entry(number) or []
            except (CorruptEntryError, SourceError):
                continue  # raised where the entry is needed
            yield from files[:left]
            left -= min(len(files), left)


def others(files: Iterable[PlannedFile], cleaned: Cleaning, place: Place, committed: Committed) -> list[str]:
    """Paths of the planned files that have been replaced by another file, which their batch has not read. Looks at
    each.

    :raises SourceError: if the files cannot be looked at.
    """
    left = iter(files)
    changed: list[str] = []
    while some := list(islice(left, _AT_A_TIME)):
        changed += [found.path for _, found in _differing(some, cleaned, place, committed)]
    return changed


def _differing(
    files: Sequence[PlannedFile], cleaned: Cleaning, place: Place, committed: Committed
) -> list[tuple[PlannedFile, FoundFile]]:
    look = place.looks([file.path for file in files])
    changed = [(file, found) for file in files if (found := differs(file, cleaned, look)) is not None]
    # What lies in the place of a file that clean_source has taken is never read for it.
    read = _as_read((one for one in changed if not cleaned.has_taken(one[0].log_id, one[0].path)), committed)
    return [(file, found) for file, found in changed if (file.log_id, file.path) not in read]


def _as_read(changed: Iterable[tuple[PlannedFile, FoundFile]], committed: Committed) -> set[tuple[int, str]]:
    """Log ids and paths of the changed files that are as their batch has read them: by ``on_changed="read"``, by the
    attempt whose rows the sink has. As for ``clean_source``, the newest batch that covers an entry decides."""
    lanes: dict[str, dict[int, list[FoundFile]]] = {}
    for file, there in changed:
        lanes.setdefault(file.lane, {}).setdefault(file.log_id, []).append(there)
    read: set[tuple[int, str]] = set()
    for lane, entries in lanes.items():
        for one in committed(lane):
            first, last = sorted((log_id(one.start), log_id(one.end)))
            over = [number for number in entries if first < number <= last]
            versions = one.told().get("as_found") if over and one.is_read else None
            for number in over:
                for there in entries.pop(number):
                    if isinstance(versions, list) and version_of(there) in versions:
                        read.add((number, there.path))
            if not entries:
                break
    return read


def differs(file: PlannedFile, cleaned: Cleaning, look: Look) -> FoundFile | None:
    """The file that now lies at the path of a planned file, if it is a different one; None if there is none, or if it
    is the planned file.

    :param cleaned: the record of ``clean_source``: a file at the path of an entry that is cleaned came later.
    :param look: returns the file at a path.
    """
    found = _found(look, file.path)
    if found is None:
        return None
    was_taken = cleaned.has_finished(file.log_id)
    return found if was_taken or not file.is_as_planned(found.size, found.mtime_ns, found.etag) else None


def not_read_by_any(paths: Sequence[str], *, rereads: bool = False) -> str:
    """Return a message that no batch reads these files, with the possible remedies.

    :param rereads: whether a batch reads a file as that is by then, so that it may have read what has changed.
    """
    named = ", ".join(map(repr, paths[:_NAMED])) + (" …" if len(paths) > _NAMED else "")
    told = (
        f"{len(paths)} file(s) have changed since a batch has planned them, or have landed under the name of one that "
        f"was read: {named}. A name is read once, so "
    )
    if rereads:
        told += (
            "what is new in them is read by no batch, unless it came before the batch ran (on_changed='read'): landed "
            "under another name, that would be read twice. While"
        )
    else:
        told += "what is new in them is read by no batch. Land it under a name that was never used; or, while"
    return (
        f"{told} `microbatch log` lists the batch of the file, clear that batch's task, with on_changed='read', to "
        "have all of it read again: a clear of a batch that retention has removed reads nothing, and one whose file "
        "clean_source has taken never reads another file in its place."
    )


def _found(look: Look, path: str) -> FoundFile | None:
    try:
        return look(path)
    except SourceError:
        return None
