"""Appends the files of the next batch of the live lane to the source log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources import UNLIMITED, ReadLimit
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.batch import BatchLimits, NextBatch
from airflow_provider_microbatch.sources.file.candidates import Candidates
from airflow_provider_microbatch.sources.file.known_names import KnownNames
from airflow_provider_microbatch.sources.file.left_out import LeftOut
from airflow_provider_microbatch.sources.file.log import SourceLog
from airflow_provider_microbatch.sources.file.notifications.hints import Hints
from airflow_provider_microbatch.sources.file.order import ListingOrder
from airflow_provider_microbatch.sources.file.seen import SeenFiles

log = logging.getLogger(__name__)


class Appender:
    """Lists, and appends an entry of what is new.

    :param source: the source.
    :param name: name of the source in the pipeline.
    :param lane: the lane whose entries are appended.
    :param source_log: the source log.
    :param seen: the files in the source log.
    :param candidates: the files that may be planned.
    :param order: chooses where a listing starts; None: at the first path.
    :param hints: says of which files the source was notified; None: it is not.
    :param known_names: makes the look for files under names that were read already, for one listing.
    :param clock_ms: now, milliseconds since the epoch.
    """

    def __init__(
        self,
        source: FileSource,
        *,
        name: str,
        lane: str,
        source_log: SourceLog,
        seen: SeenFiles,
        candidates: Candidates,
        order: ListingOrder | None,
        hints: Hints | None,
        known_names: Callable[[], KnownNames],
        clock_ms: Callable[[], int],
    ) -> None:
        self._source = source
        self._name = name
        self._lane = lane
        self._log = source_log
        self._seen = seen
        self._candidates = candidates
        self._order = order
        self._hints = hints
        self._known_names = known_names
        self._clock_ms = clock_ms

    def limits(self, limit: ReadLimit = UNLIMITED) -> BatchLimits:
        """The source's own limits, combined with ``limit``."""
        source = self._source
        own = BatchLimits(files=source.max_files, bytes=source.max_bytes, latest_first=source.latest_first)
        return own.within(limit)

    def append(self, limit: ReadLimit) -> bool:
        """List, or look at what notifications name, and append the files of the next batch. False if there are none.
        True if the log has grown, by this entry or by an entry of another planner: if that entry belongs to another
        lane, the eligible files have changed, and the caller must try again."""
        if self._hints is None:
            return self._append(limit, None)
        try:
            named = self._hints.named()
            # Without a message there is nothing. With messages by which nothing is found all are listed: a sensor that
            # listed may have found a file of which no message came.
            if named is not None and (not named or self._append_named(limit, named)):
                return bool(named)
            return self._append(limit, None)
        except BaseException:
            self._hints.give_back()  # else its retry would see none of them for a while, and say that nothing is new
            raise

    def _append_named(self, limit: ReadLimit, named: Sequence[str]) -> bool:
        try:
            return self._append(limit, named)
        except SourceError as error:
            # Anybody may have written the names. What is really wrong, a listing meets, too.
            log.warning("source %r: all is listed, since what messages name gives an error: %s", self._name, error)
            return False

    def _append(self, limit: ReadLimit, named: Sequence[str] | None) -> bool:
        order, began_ms, settled = self._order, self._clock_ms(), self._candidates.settled()
        walk = None if order is None else order.walk()
        unseen = (known := self._known_names()).watched(walk.watched(self._seen.unseen) if walk else self._seen.unseen)
        batch, left_out, met = NextBatch(self.limits(limit)), LeftOut(self._name), set()
        for found in self._candidates.young(unseen, None if walk is None else walk.start, left_out, named=named):
            if named is not None:
                met.add(found.path)
            if walk is not None:
                walk.meet(found.path)
            if settled(found):
                batch.add(found)
            else:
                batch.leave(found.path)
                if found.mtime_ns // 1_000_000 > began_ms:
                    left_out.early(found.path)
        left_out.warn()
        known.warn(self._name)
        files = batch.files()
        self._candidates.check_readable(files)
        if walk is not None and (late := walk.late()) is not None:
            log.warning("source %r: %s", self._name, late)
        added = bool(files) and self._log.add(self._seen.latest + 1, files, lane=self._lane)
        if files:
            self._seen.refresh()
        if order is not None and walk is not None and (added or not files):
            order.listed(walk, left=batch.left, latest=self._seen.latest, began_ms=began_ms)
        if self._hints is not None and (added or not files):
            self._hints.over(
                left=met.difference(file.path for file in files),
                latest=self._seen.latest,
                listed_ms=began_ms if named is None else None,
                is_whole=batch.left is None,
            )
        elif self._hints is not None:
            self._hints.give_back()
        return bool(files)
