"""Chooses where an ordered listing starts, and when all files are listed again.

A folder is ordered if new files' paths sort after the paths of existing files: ``dt=2026-11-21/hh=10/…``, names with a
timestamp or a number. Then a listing need not look at paths before the one up to which everything was planned; in
object stores, ``StartAfter`` skips them. Paths compare as whole texts by code points, which is the order of their UTF-8
bytes and that of object stores: ``a-b/x`` sorts before ``a/x``.

``order/<n>`` in the source's state, of which the highest n counts, says where the next listing starts. The start is
chosen so that every file that came in order and sorts before it is in the source log:

* It does not go past a file that was found and is not planned yet: one that limits or its age left for later.
* It does not go past the newest path of the listing *before*. A walk is no snapshot: it may miss a file that lands in a
  folder behind it and find the next one in a folder ahead. By the next walk the missed one is there.

Without a record that counts (:mod:`~airflow_provider_microbatch.sources.file.sealed`), and each time that a full
listing is due, the listing has no start. So a late file is found in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.sources.file.listing import Unseen
from airflow_provider_microbatch.sources.file.log import NOTHING, SourceLog
from airflow_provider_microbatch.sources.file.sealed import SealedRecords, is_due
from airflow_provider_microbatch.stores import Store

FULL_LISTING_SECONDS = 3_600
"""Seconds after which all files are listed again, unless the source sets another number."""

ORDER = "order"
"""Folder of the records in the source's state."""

_NAMED = 5
"""Number of late files that a message names."""

_POLLED: dict[str, tuple[int, int]] = {}
"""By the state's address: the number of the record after which this process's sensors listed all files in vain, and the
time (milliseconds). A sensor writes nothing, and each of its questions opens the source anew: without this, a pipeline
at rest would list all files at each question once a full listing is due. Forgetting an entry costs a listing."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """The record that a plan leaves for the next one.

    :param start: the next listing starts at this path; None: at the first.
    :param newest: the last path, in order, that this plan knew to exist.
    :param full_ms: time of the last full listing, milliseconds since the epoch.
    """

    start: str | None
    newest: str
    full_ms: int

    def __post_init__(self) -> None:
        if not isinstance(self.start, str | None) or not isinstance(self.newest, str) or type(self.full_ms) is not int:
            raise TypeError("start and newest are texts, full_ms is a number")


class Walk:
    """One listing of a plan: its start, and the paths that it meets.

    :param number: number of the record that it follows.
    :param before: that record; None if no record counts.
    :param full: list all files, whatever the record says.
    """

    def __init__(self, *, number: int, before: Record | None, full: bool) -> None:
        self.number = number
        self.before = before
        self.start = None if before is None or full else before.start
        self.newest: str | None = None
        self._late: list[str] = []
        self._count = 0

    @property
    def is_full(self) -> bool:
        """Whether all files are listed."""
        return self.start is None

    def watched(self, unseen: Unseen) -> Unseen:
        """Wrap ``unseen`` so that the walk notes which planned paths are there."""

        def ask(paths: Sequence[str]) -> Sequence[str]:
            left = unseen(paths)
            self._pass(max(paths if not left else set(paths).difference(left), default=None))
            return left

        return ask

    def meet(self, path: str) -> None:
        """Note a file that is to be planned, now or later."""
        self._pass(path)
        if self.before is not None and self.before.start is not None and path < self.before.start:
            self._count += 1
            # The first ones by name: a folder is listed in no order, and a user looks for the day where the disorder
            # began.
            self._late = sorted([*self._late, path])[:_NAMED]

    def late(self) -> str | None:
        """Return a message about the files that came out of order; None if there are none."""
        if not self._count or self.before is None:
            return None
        named = ", ".join(map(repr, self._late)) + (f" and {self._count - _NAMED} more" if self._count > _NAMED else "")
        return (
            f"order was broken: {self._count} file(s) landed that sort before {self.before.start!r}, up to which all "
            f"was planned: {named}. They were found by the listing of all files, and are planned from now on. If this "
            "happens often, leave out ordered, or lower full_listing_seconds."
        )

    def _pass(self, path: str | None) -> None:
        if path is not None and (self.newest is None or path > self.newest):
            self.newest = path


class ListingOrder:
    """Chooses where listings start, and records it.

    :param source_log: the planned files.
    :param state: the source's own state.
    :param selects: the arguments of the source that decide which files it reads, as JSON values.
    :param full_listing_seconds: seconds after which all files are listed again.
    :param clock_ms: the time, milliseconds since the epoch.
    """

    def __init__(
        self,
        source_log: SourceLog,
        state: Store,
        *,
        selects: Mapping[str, Any],
        full_listing_seconds: float,
        clock_ms: Callable[[], int],
    ) -> None:
        self._location = state.location
        self._records = SealedRecords(Record, ORDER, source_log, state, selects=selects)
        self._full_ms = int(full_listing_seconds * 1000)
        self._clock_ms = clock_ms

    def walk(self) -> Walk:
        """Return the next listing of a plan; it must begin after this call."""
        number, record = self._records.read()
        return Walk(number=number, before=record, full=record is None or self._is_due(record.full_ms))

    def starts(self) -> Iterator[str | None]:
        """Yield the paths where a sensor starts its listings, one by one, until it finds something. Writes nothing."""
        number, record = self._records.read()
        if record is not None and record.start is not None:
            yield record.start
            polled, polled_ms = _POLLED.get(self._location, (NOTHING, 0))
            if not self._is_due(record.full_ms) or (polled == number and not self._is_due(polled_ms)):
                return
        now_ms = self._clock_ms()
        yield None
        _POLLED[self._location] = (number, now_ms)

    def listed(self, walk: Walk, *, left: str | None, latest: int, began_ms: int) -> None:
        """Record that the walk is over, and that all files that it found are in the log up to ``latest``, except those
        left for later.

        :param left: the first path, in order, of the files left for later; None if there are none.
        :param latest: the highest log id.
        :param began_ms: when the walk began, milliseconds since the epoch.
        """
        before, newest = walk.before, walk.newest
        if before is not None and not walk.is_full:
            newest = before.newest if newest is None else max(newest, before.newest)
        if newest is None:
            return
        start = None
        if before is not None:
            # A full listing moves back a start that a stray name has set too far, once the stray file is gone.
            start = min(before.newest, newest) if left is None else min(before.newest, newest, left)
        full_ms = began_ms if walk.is_full or before is None else before.full_ms
        if before is None or (start, newest, full_ms) != (before.start, before.newest, before.full_ms):
            record = Record(start=start, newest=newest, full_ms=full_ms)
            self._records.write(walk.number + 1, record, latest=latest)

    def _is_due(self, last_ms: int) -> bool:
        return is_due(last_ms, now_ms=self._clock_ms(), every_ms=self._full_ms)
