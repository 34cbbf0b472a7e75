"""Which files were planned already. The only place that knows how that is remembered."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_microbatch.sources.file_log import NOTHING, PlannedFile, SourceLog


class SeenFiles:
    """The set of all paths in the source log, and how far the log reaches.

    Entries never change, so what was read once stays; :meth:`refresh` reads only what came after.
    """

    def __init__(self, log: SourceLog) -> None:
        self._log = log
        self._paths: set[str] = set()
        self._latest = NOTHING
        self._newest_ms: int | None = None

    @property
    def latest(self) -> int:
        """The highest log id; -1 if the log is empty."""
        return self._latest

    @property
    def newest_ms(self) -> int | None:
        """The highest mtime (milliseconds since the epoch) of a planned file; None if there is none."""
        return self._newest_ms

    def contains(self, path: str) -> bool:
        """True if the file is in some entry."""
        return path in self._paths

    def refresh(self) -> None:
        """Take in what the log gained. One listing the first time; later one missing key when nothing is new."""
        if self._latest != NOTHING:
            while (files := self._log.entry(self._latest + 1)) is not None:
                self._take(self._latest + 1, files)
            if self._log.compact(self._latest + 1) is None:
                return
        names = self._log.names()
        compacted = [number for number in names.compacted if number > self._latest]
        if compacted:
            self._take(compacted[-1], self._log.compact(compacted[-1]) or [])
        for number in names.entries:
            if number > self._latest:
                self._take(number, self._log.entry(number) or [])

    def _take(self, number: int, files: Iterable[PlannedFile]) -> None:
        for file in files:
            self._paths.add(file.path)
            if self._newest_ms is None or file.timestamp_ms > self._newest_ms:
                self._newest_ms = file.timestamp_ms
        self._latest = number
