"""Files that lie under names which batches have read already, and are others than those: no batch reads them.

A file is known by its path, as in Spark: what is appended to one that was read, or lands under its name later, would be
read by nobody, without a word. Nobody can look at all names at each plan, so a plan looks at those that are likely: the
newest of the source log, and, where ``clean_source`` leaves no file of before there, those that it lists anyway.
``microbatch check`` looks at all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from airflow_provider_microbatch.exceptions import CorruptEntryError, SourceError
from airflow_provider_microbatch.sources.file.cleaning import Cleaning
from airflow_provider_microbatch.sources.file.listing import FoundFile, Unseen
from airflow_provider_microbatch.sources.file.log import PlannedFile, SourceLog
from airflow_provider_microbatch.sources.file.place import Look, Place

log = logging.getLogger(__name__)

RECENT_ENTRIES = 2
"""So many entries of the source log are looked at by each plan and question."""

_AT_A_TIME = 1_000
_NAMED = 5
_PAUSE = 60.0  # seconds
_looked: dict[str, float] = {}
"""When the next look is due, by address of the source log."""
_MOST_SAID = 1_000
_said: dict[str, FoundFile] = {}
"""What this process has told of already, by path: a trigger asks again and again."""


def is_due(location: str) -> bool:
    """Whether a question that is asked again and again looks at the names now: once in a while it does.

    :param location: of the source log.
    """
    now = time.monotonic()
    if now < _looked.get(location, now):
        return False
    _looked[location] = now + _PAUSE
    return True


class KnownNames:
    """What one listing comes by that has the name of a file that was planned before.

    :param source_log: the source log.
    :param cleaned: which of its entries ``clean_source`` has taken.
    :param place: where the files lie.
    :param latest: where the log ends.
    :param newest_ms: the highest mtime in it, milliseconds since the epoch: what is listed and younger is another file.
        None: what is listed is not looked up, as there may be any number of files of before.
    """

    def __init__(
        self, source_log: SourceLog, cleaned: Cleaning, place: Place, *, latest: int, newest_ms: int | None
    ) -> None:
        self._log = source_log
        self._cleaned = cleaned
        self._place = place
        self._latest = latest
        self._newest_ms = newest_ms
        self._listed: list[str] = []

    def watched(self, unseen: Unseen) -> Unseen:
        """The same, and what is seen already is noted."""
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
        """Say which of them are others than what was planned, each once in a process.

        :param source: its name.
        """
        new = []
        try:
            found = list(self._others())
        except SourceError as error:
            log.debug("nobody looks for changed files of source %r this time: %s", source, error)
            return
        for one in found:
            if _said.get(one.path) != one:
                if len(_said) > _MOST_SAID:
                    _said.clear()
                _said[one.path] = one
                new.append(one.path)
        if new:
            log.warning("source %r: %s", source, not_read_by_any(new))

    def _others(self) -> Iterator[FoundFile]:
        recent = list(self._recent())
        yield from _differing(recent, self._cleaned, self._place)
        # What was planned is not looked up for these: none of it is younger than the youngest.
        if self._newest_ms is None:
            return
        looked = {file.path for file in recent}
        listed = [path for path in self._listed[: self._place.lookups] if path not in looked]
        look = self._place.looks(listed)
        for path in listed:
            found = _found(look, path)
            if found is not None and found.mtime_ns // 1_000_000 > self._newest_ms:
                yield found

    def _recent(self) -> Iterator[PlannedFile]:
        left = self._place.lookups
        for number in range(self._latest, max(self._latest - RECENT_ENTRIES, -1), -1):
            try:
                files = self._log.entry(number) or []
            except (CorruptEntryError, SourceError):
                continue  # told by whoever needs it
            yield from files[:left]
            left -= min(len(files), left)


def others(files: Iterable[PlannedFile], cleaned: Cleaning, place: Place) -> list[str]:
    """Paths of those planned files in whose place another one is now. Looks at each.

    :raises SourceError: if that cannot be asked for.
    """
    left = iter(files)
    changed: list[str] = []
    while some := list(islice(left, _AT_A_TIME)):
        changed += [found.path for found in _differing(some, cleaned, place)]
    return changed


def _differing(files: Sequence[PlannedFile], cleaned: Cleaning, place: Place) -> Iterator[FoundFile]:
    look = place.looks([file.path for file in files])
    for file in files:
        if (found := differs(file, cleaned, look)) is not None:
            yield found


def differs(file: PlannedFile, cleaned: Cleaning, look: Look) -> FoundFile | None:
    """What lies where the file was planned, if that is another one; None if nothing does, or it is the file.

    :param cleaned: of what ``clean_source`` is through with, whatever lies there came later.
    :param look: what is at a path now.
    """
    found = _found(look, file.path)
    if found is None:
        return None
    was_taken = file.log_id in cleaned.done and file.log_id not in cleaned.due
    return found if was_taken or not file.is_as_planned(found.size, found.mtime_ns, found.etag) else None


def not_read_by_any(paths: Sequence[str]) -> str:
    """That these are read by no batch, in words, with the ways on."""
    named = ", ".join(map(repr, paths[:_NAMED])) + (" …" if len(paths) > _NAMED else "")
    return (
        f"{len(paths)} file(s) have changed since a batch has planned them, or have landed under the name of one that "
        f"was read: {named}. A name is read once, so what is new in them is read by no batch. Land it under a name "
        "that was never used; or clear the task of the file's batch, with on_changed='read', to have all of it read "
        "again."
    )


def _found(look: Look, path: str) -> FoundFile | None:
    try:
        return look(path)
    except SourceError:
        return None
