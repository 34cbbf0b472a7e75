"""The files that were planned already. The only module that knows how they are remembered.

The source log is the truth. Beside it, in the source's own state, ``index/<first>-<last>`` are segments
(:mod:`~airflow_provider_microbatch.sources.file.index`) that cover log entries from 0 on. A planner reads the segments
and only the entries after them; when these become many, the planner writes a segment of them, merged with preceding
segments that are not much larger, so that there are never more than a few segments and each file is written a few times
in all.

Nothing depends on the index being there, whole or up to date:

* A segment is put when it is complete, then those that it covers are deleted. After a crash in between both are there,
  and the larger one is taken.
* Segments that leave a gap, are damaged, or belong to another log than this one (a backup was restored) are not used.
  The entries they would have covered are read from the log.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from functools import partial

from airflow_provider_microbatch.checkpoint.handover import INDEX
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.sources.file.index import (
    Segment,
    SegmentDamagedError,
    SegmentGoneError,
    Span,
    build,
    fingerprint,
    fingerprints,
)
from airflow_provider_microbatch.sources.file.log import NOTHING, PlannedFile, SourceLog
from airflow_provider_microbatch.stores import Store

log = logging.getLogger(__name__)

TAIL_ENTRIES = 32
"""The number of entries after the index that each plan and question reads; when there are as many, they are indexed."""

TAIL_FILES = 1_000
"""The number of files after the index that each plan and question reads; when there are as many, they are indexed."""

_IN_MEMORY = 65_536
"""The number of fingerprints kept one by one; then they become a segment, in 16 bytes each instead of a hundred."""

_NAME = re.compile(r"(0|[1-9][0-9]*)-(0|[1-9][0-9]*)")
_GROWTH = 2
"""A segment is merged with preceding segments that have at most this many times its files."""

_RELOADS = 10


class SeenFiles:
    """The paths in the source log, and its last log id.

    Entries never change, so entries that were read stay known; :meth:`refresh` reads only later ones.

    :param source_log: the source log.
    :param state: the source's own state.
    """

    def __init__(self, source_log: SourceLog, state: Store) -> None:
        self._log = source_log
        self._state = state
        self._damaged: set[str] = set()
        self._forget()

    def _forget(self) -> None:
        self._opened = False
        self._segments: list[Segment] = []  # by log id
        self._recent: set[bytes] = set()
        self._recent_first = 0
        self._latest = NOTHING
        self._newest_ms: int | None = None

    @property
    def latest(self) -> int:
        """The highest log id; -1 if the log is empty."""
        return self._latest

    @property
    def newest_ms(self) -> int | None:
        """The highest mtime (milliseconds since the epoch) of a file that the live lane planned; None if there is none.
        The files that a backfill takes from its interval do not show how far the live lane has come."""
        return self._newest_ms

    def unseen(self, paths: Sequence[str]) -> list[str]:
        """Those of ``paths`` that are in no entry, in their order."""
        prints = fingerprints(paths)
        for _ in range(_RELOADS):
            try:
                left: Iterable[int] = range(len(prints))
                for segment in self._segments:
                    left = segment.missing(prints, left)
                return [paths[position] for position in left if prints[position] not in self._recent]
            except SegmentGoneError:
                log.debug("another planner has merged the index of %s: opening it again", self._log.location)
            except SegmentDamagedError as error:
                self._give_up(error.name, str(error))
            self._forget()
            self.refresh()
        raise self._unsteady()

    def refresh(self) -> None:
        """Read the log's new entries: by a look at one missing entry if nothing is new; by a listing if there is no
        index."""
        if not self._opened:
            self._open()
        if self._latest == NOTHING:
            self.refresh_by_listing()
            return
        while (files := self._log.entry(self._latest + 1)) is not None:
            self._take(self._latest + 1, files)
        if self._log.has_compact(self._latest + 1):
            self.refresh_by_listing()

    def refresh_by_listing(self) -> None:
        """Read the new entries of the log even where entries are missing in between: Spark removes those that it has
        compacted.

        :raises CorruptEntryError: if an entry is missing that is in no ``.compact``: its files would be planned again.
        """
        names = self._log.names()
        compacted = [number for number in names.compacted if number > self._latest]
        if compacted:
            files = self._log.compact(compacted[-1]) or []
            self._take(compacted[-1], [file for file in files if file.log_id > self._latest])
        for number in range(self._latest + 1, names.latest + 1):
            own = self._log.entry(number)
            if own is None:
                raise self._log.lost(number)
            self._take(number, own)

    def save(self) -> None:
        """Index the entries after the index if they are many. For planners only; a failure costs time, not answers."""
        for _ in range(_RELOADS):
            covered = max((one.span.last for one in self._segments if one.stored), default=NOTHING)
            files = len(self._recent) + sum(one.files for one in self._segments if not one.stored)
            few = self._latest - covered < TAIL_ENTRIES and files < TAIL_FILES
            if few and not self._damaged:
                return
            try:
                self._save()
                return
            except SegmentGoneError:
                return  # another planner is saving the index
            except SegmentDamagedError as error:
                self._give_up(error.name, str(error))
                self._forget()
                self.refresh()
            except CheckpointError as error:
                log.warning("the index of %s was not written; a later plan will: %s", self._log.location, error)
                return
        raise self._unsteady()

    def _save(self) -> None:
        seal = self._log.seal(self._latest)
        if seal is not None:
            kept = list(self._segments)
            files = len(self._recent)
            while kept and not (kept[-1].stored and kept[-1].files > _GROWTH * files):
                files += kept.pop().files
            merged = self._segments[len(kept) :]
            first = merged[0].span.first if merged else self._recent_first
            name = f"{first}-{self._latest}"
            data = build(Span(first, self._latest, self._newest_ms, seal), segments=merged, prints=self._recent)
            if name in self._damaged:
                self._delete(name)
            self._state.put_if_absent(f"{INDEX}/{name}", data)
            self._segments = [*kept, Segment.of(data, name=name, stored=True)]
            self._recent = set()
            self._recent_first = self._latest + 1
        # Only now: a process that opens the index in between finds the new segment or the old ones.
        stored = {one.name: one.span for one in self._segments if one.stored}
        for old, (low, high) in self._names().items():
            covered = any(span.first <= low and high <= span.last for span in stored.values())
            if old not in stored and (covered or old in self._damaged):
                self._delete(old)
        self._damaged = set()

    def _open(self) -> None:
        """Open the segments that cover the log from its first entry on without a gap, as far as they fit the log."""
        for _ in range(_RELOADS):
            try:
                self._segments = self._cover()
                break
            except SegmentGoneError:
                continue
        else:
            raise self._unsteady()
        while self._segments and self._log.seal(self._segments[-1].span.last) != self._segments[-1].span.seal:
            name = self._segments.pop().name
            self._give_up(name, f"index segment {name} is of another log than {self._log.location}")
        for segment in self._segments:
            self._latest = segment.span.last
            self._note_time(segment.span.newest_ms)
        self._recent_first = self._latest + 1
        self._opened = True

    def _cover(self) -> list[Segment]:
        spans = {name: span for name, span in self._names().items() if name not in self._damaged}
        chosen: list[Segment] = []
        while starting := [
            name for name, (first, _) in spans.items() if first == (chosen[-1].span.last + 1 if chosen else 0)
        ]:
            name = max(starting, key=lambda one: spans[one][1])
            try:
                segment = Segment(partial(self._state.get_range, f"{INDEX}/{name}"), name=name)
                if (segment.span.first, segment.span.last) != spans[name]:
                    raise SegmentDamagedError(name, "covers other entries than its name says")
                chosen.append(segment)
            except SegmentDamagedError as error:
                self._give_up(name, str(error))
                del spans[name]
        return chosen

    def _give_up(self, name: str, why: str) -> None:
        log.warning("source log %s: %s. It is made again from the log.", self._log.location, why)
        self._damaged.add(name)

    def _unsteady(self) -> CheckpointError:
        return CheckpointError(
            f"the index of source log {self._log.location} changes faster than it can be read. Run again; if it goes "
            f"on, remove {self._state.location}/{INDEX}, which is made again from the log."
        )

    def _delete(self, name: str) -> None:
        self._state.delete(f"{INDEX}/{name}")

    def _names(self) -> dict[str, tuple[int, int]]:
        matches = [_NAME.fullmatch(name) for name in self._state.list(INDEX)]
        return {match[0]: (int(match[1]), int(match[2])) for match in matches if match}

    def _take(self, number: int, files: Iterable[PlannedFile]) -> None:
        for file in files:
            self._recent.add(fingerprint(file.path))
            if file.lane == LIVE:
                self._note_time(file.timestamp_ms)
        self._latest = number
        if len(self._recent) >= _IN_MEMORY:
            span = Span(self._recent_first, number, self._newest_ms, bytes(16))
            data = build(span, segments=(), prints=self._recent)
            self._segments.append(Segment.of(data, name="in memory", stored=False))
            self._recent, self._recent_first = set(), number + 1

    def _note_time(self, time_ms: int | None) -> None:
        if time_ms is not None and (self._newest_ms is None or time_ms > self._newest_ms):
            self._newest_ms = time_ms
