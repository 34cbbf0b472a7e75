"""Files that lie under names which batches have read already, and are others than those: no batch reads them.

A file is known by its path, as in Spark: what is appended to one that was read, or lands under its name later, would be
read by nobody, without a word. Nobody can look at all names at each plan, so a plan looks at those that are likely: the
newest of the source log, and, where ``clean_source`` leaves no file of before there, those that it lists anyway.
``microbatch check`` looks at all.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence

from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.sources.file.cleaning import Cleaning
from airflow_provider_microbatch.sources.file.listing import Unseen
from airflow_provider_microbatch.sources.file.log import PlannedFile, SourceLog

log = logging.getLogger(__name__)

RECENT_ENTRIES = 2
"""So many entries of the source log are looked at by each plan and question."""

MOST = 1_000
"""So many names at most are looked up by each of them."""

_NAMED = 5
_PAUSE = 60.0  # seconds
_looked: dict[str, float] = {}
"""When the next look is due, by address of the source log."""
_said: dict[str, tuple[int, int]] = {}
"""Size and mtime of what this process has told of already, by path: a trigger asks again and again."""


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
    :param latest: where the log ends.
    :param newest_ms: the highest mtime in it, milliseconds since the epoch: what is listed and younger is another file.
        None: what is listed is not looked up, as there may be any number of files of before.
    """

    def __init__(self, source_log: SourceLog, cleaned: Cleaning, *, latest: int, newest_ms: int | None) -> None:
        self._log = source_log
        self._cleaned = cleaned
        self._latest = latest
        self._newest_ms = newest_ms
        self._listed: list[str] = []

    def watched(self, unseen: Unseen) -> Unseen:
        """The same, and what is seen already is noted."""
        if self._newest_ms is None:
            return unseen

        def ask(paths: Sequence[str]) -> Sequence[str]:
            wanted = unseen(paths)
            if len(wanted) < len(paths) and len(self._listed) < MOST:
                self._listed += [path for path in paths if path not in set(wanted)]
            return wanted

        return ask

    def warn(self, source: str) -> None:
        """Say which of them are others than what was planned, each once in a process.

        :param source: its name.
        """
        new = []
        for path, status in self._others():
            found = (status.st_size, status.st_mtime_ns)
            if _said.get(path) != found:
                if len(_said) > MOST:
                    _said.clear()
                _said[path] = found
                new.append(path)
        if new:
            log.warning("source %r: %s", source, not_read_by_any(new))

    def _others(self) -> Iterator[tuple[str, os.stat_result]]:
        looked = set[str]()
        for file in self._recent():
            looked.add(file.path)
            if (status := differs(file, self._cleaned)) is not None:
                yield file.path, status
        # What was planned is not looked up for these: none of it is younger than the youngest.
        for path in self._listed[:MOST]:
            if path not in looked and self._newest_ms is not None:
                status = _status(path)
                if status is not None and status.st_mtime_ns // 1_000_000 > self._newest_ms:
                    yield path, status

    def _recent(self) -> Iterator[PlannedFile]:
        left = MOST
        for number in range(self._latest, max(self._latest - RECENT_ENTRIES, -1), -1):
            try:
                files = self._log.entry(number) or []
            except CorruptEntryError:
                continue  # told by whoever needs it
            yield from files[:left]
            left -= min(len(files), left)


def others(files: Iterable[PlannedFile], cleaned: Cleaning) -> list[str]:
    """Paths of those planned files in whose place another one is now. Looks at each."""
    return [file.path for file in files if differs(file, cleaned) is not None]


def differs(file: PlannedFile, cleaned: Cleaning) -> os.stat_result | None:
    """What lies where the file was planned, if that is another one; None if nothing does, or it is the file.

    :param cleaned: of what ``clean_source`` is through with, whatever lies there came later.
    """
    status = _status(file.path)
    if status is None:
        return None
    was_taken = file.log_id in cleaned.done and file.log_id not in cleaned.due
    return status if was_taken or not file.is_as_planned(status.st_size, status.st_mtime_ns) else None


def not_read_by_any(paths: Sequence[str]) -> str:
    """That these are read by no batch, in words, with the ways on."""
    named = ", ".join(map(repr, paths[:_NAMED])) + (" …" if len(paths) > _NAMED else "")
    return (
        f"{len(paths)} file(s) have changed since a batch has planned them, or have landed under the name of one that "
        f"was read: {named}. A name is read once, so what is new in them is read by no batch. Land it under a name "
        "that was never used; or clear the task of the file's batch, with on_changed='read', to have all of it read "
        "again."
    )


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 a Path for each of a thousand files
    except OSError:
        return None
