"""A log of numbered entries: the interface of Spark's ``MetadataLog``, over any store and any codec.

A log that is a million entries long must not be listed to find its end. So every 32nd append leaves a hint beside the
log: an empty file whose name is the number. A hint is only a place to begin: its entry must exist, the entries that
follow are asked for together, and the last ones one by one. Where that search does not end as it should (no hint, a
missing entry, a gap, a longer way than this package's appends leave), the log is listed.

Retention leaves a hint where the log begins, too: a number that is missing above it is a gap.

Old entries may lie in segments (:mod:`~airflow_provider_microbatch.checkpoint.segments`), where ``compact`` puts them;
reading does not show the difference.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, pairwise, takewhile
from typing import Generic, Protocol, TypeVar

from airflow_provider_microbatch.checkpoint.segments import SEGMENT_SIZE, Segments
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.stores import Store

log = logging.getLogger(__name__)

HINT_EVERY = 32
"""One append in so many leaves a hint. Each costs a second append; fewer make the way from a hint to the end long."""

LOOKED_AT = 32
"""Number of entries of a log that each plan looks at for a gap."""

_LOWEST = "from-"
"""The beginning of the name of the hint that says where the log begins; older versions pass such a hint over."""

E = TypeVar("E")


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A missing entry of a log.

    :param missing: a number without an entry.
    :param after: a higher number that has an entry.
    """

    missing: int
    after: int


class Decode(Protocol[E]):  # type: ignore[misc]  # E is only returned, and MetadataLog needs it invariant
    """Reads an entry; ``where`` is its address, for the message of an error."""

    def __call__(self, data: bytes, *, where: str) -> E: ...


class MetadataLog(Generic[E]):
    """Entry N is the file N. It is written once and never changed.

    :param store: where the files lie, scoped to the log's folder.
    :param encode: entry to bytes.
    :param decode: bytes to entry.
    :param complete: takes a number, its entry and the entry's bytes, and adds what was found out since the entry was
        written.
    :param hints: where hints lie, scoped to a folder of their own; None for a log that is always listed.
    :param segments: where segments lie, scoped to a folder of their own; None for a log that has none.
    """

    def __init__(
        self,
        store: Store,
        *,
        encode: Callable[[E], bytes],
        decode: Decode[E],
        complete: Callable[[int, E, bytes], E] = lambda number, entry, data: entry,
        hints: Store | None = None,
        segments: Store | None = None,
    ) -> None:
        self._store = store
        self._segments = None if segments is None else Segments(segments)
        self._hints = hints
        self._seen = -1
        """The newest number that this process has seen; -1 for none."""
        self._hinted: list[str] | None = None
        """The names of the hints, as they were when the end was looked for."""
        self._encode = encode
        self._decode = decode
        self._complete = complete

    @property
    def location(self) -> str:
        """Address of the log's folder, for messages."""
        return self._store.location

    def add(self, batch_id: int, entry: E) -> bool:
        """Write entry ``batch_id`` unless there is one; durable when this returns.

        :return: False if there was one; it is left as it is.
        """
        data = self._encode(entry)
        if not self._store.put_if_absent(str(batch_id), data):
            return False
        # Compaction and retention remove the oldest entries first: where the entry before is a file of its own, neither
        # of them has been here.
        follows = batch_id > 0 and self.has(batch_id - 1)
        if not follows and self.is_compacted(batch_id):
            # This writer slept while the log went on: the number was taken, and its entry moved into a segment.
            self.remove(batch_id, data)
            return False
        if not follows and self._is_stray(batch_id):
            # This writer slept too, and retention has removed the number meanwhile, with those around it.
            self.remove(batch_id, data)
            return False
        self._seen = max(self._seen, batch_id)
        if batch_id % HINT_EVERY == 0 and batch_id > 0:
            self._leave_hint(batch_id)
        return True

    def take_back(self, batch_id: int, entry: E) -> None:
        """Remove the entry that this process has just added and should not have; an entry of another process stays."""
        self.remove(batch_id, self._encode(entry))

    def remove(self, batch_id: int, data: bytes) -> bool:
        """Remove an entry, as long as it is a file of its own with these bytes.

        :return: whether the entry was there, and is gone.
        """
        return self._store.delete_if(str(batch_id), data)

    def _is_stray(self, batch_id: int) -> bool:
        """Whether the log ends elsewhere: an entry that was put at the log's end follows the entry before it."""
        newest = self.latest_id()
        if newest is None or newest <= batch_id:
            return False
        neighbour = batch_id - 1 if batch_id > 0 else 1
        return self._bytes(neighbour) is None

    def get(self, batch_id: int) -> E | None:
        """Entry ``batch_id``, or None.

        :raises CorruptEntryError: if there is one that cannot be read.
        """
        read = self.read(batch_id)
        return None if read is None else read[0]

    def read(self, batch_id: int) -> tuple[E, bytes] | None:
        """Entry ``batch_id`` with its bytes, which are the same in a file and in a segment; or None.

        :raises CorruptEntryError: if there is one that cannot be read.
        """
        data = self._bytes(batch_id)
        if data is None:
            return None
        return self._complete(batch_id, self._decode(data, where=self.where(batch_id)), data), data

    def encoded(self, entry: E) -> bytes:
        """The entry as the bytes that :meth:`add` writes."""
        return self._encode(entry)

    def _bytes(self, batch_id: int) -> bytes | None:
        if self._segments is None:
            return self._store.get(str(batch_id))
        data = self._segments.get(batch_id) or self._store.get(str(batch_id))
        # The entry may have moved just now.
        return data if data is not None else self._segments.get(batch_id, fresh=True)

    def ids(self) -> list[int]:
        """The numbers of all entries, ascending. Two listings, reads no entry."""
        # Files before segments: an entry that moves in between is then in both, and in the other order in none.
        found = set(numbers(self._store.list("")))
        if self._segments is not None:
            for first, last in self._segments.spans(fresh=True).items():
                found.update(range(first, last + 1))
        return sorted(found)

    def has(self, batch_id: int) -> bool:
        """Whether there is an entry ``batch_id``. Reads no entry."""
        return self._store.modified_ms(str(batch_id)) is not None

    def age_seconds(self, batch_id: int) -> float:
        """Seconds since the entry was written, by the store's clock; infinite if there is none."""
        written = self._store.modified_ms(str(batch_id))
        return math.inf if written is None else (self._store.now_ms() - written) / 1000

    def latest_id(self) -> int | None:
        """The highest number, or None. Reads no entry, and lists the log only where no hint leads to its end."""
        newest = self._latest_by_hint()
        if newest is None:
            newest = max(self.ids(), default=None)
        if (newest is None or newest < self._seen) and self._seen >= 0:
            # A store may list a new entry late; a command may have moved the newest one away.
            newest = self._seen if self._bytes(self._seen) is not None else newest
        self._seen = -1 if newest is None else newest
        return newest

    def newest_seen(self) -> int | None:
        """The highest number as it was when this process looked last, which it does now if it never has. A newer entry
        may have come, and a command may have moved this one away."""
        return self.latest_id() if self._seen < 0 else self._seen

    def _latest_by_hint(self) -> int | None:
        if self._hints is None:
            return None
        begin = self._seen
        if begin < 0:
            self._hinted = self._hint_names()
            hinted = max(numbers(self._hinted), default=None)
            if hinted is None:
                return None
            # The entries after the hint that can be seen at once. Another may have come since: the end is searched for.
            found = self._present(range(hinted, hinted + 2 * HINT_EVERY))
            if hinted not in found:
                return None
            begin = next(number for number in count(hinted) if number + 1 not in found)
            if max(found) > begin:
                return None  # an entry before them is lost, or not listed yet
        elif not self.has(begin):
            return None
        for number in range(begin, begin + 2 * HINT_EVERY):
            if not self.has(number + 1):
                # A single lost entry is not the end.
                return None if self.has(number + 2) else number
        return None

    def _present(self, wanted: range) -> set[int]:
        """Those of the numbers that have a file of their own; a file that came just now may be left out."""
        return set(map(int, self._store.present("", list(map(str, wanted)))))

    def _leave_hint(self, batch_id: int) -> None:
        """Leave a hint that the log reaches ``batch_id``. The append is done, so a failure here must not fail it."""
        if self._hints is None:
            return
        try:
            self._hints.put_if_absent(str(batch_id), b"")
            for old in numbers(self._hints.list("")):
                # A hint that is ahead, of a log that was restored from a backup, would be in the way until then.
                if old != batch_id:
                    self._hints.delete(str(old))
        except CheckpointError as error:
            log.warning("no hint was left at %s, so the log will be listed: %s", self.where(batch_id), error)

    def latest(self) -> tuple[int, E] | None:
        """The newest entry with its number, or None."""
        newest = self.latest_id()
        entry = None if newest is None else self.get(newest)
        return None if newest is None or entry is None else (newest, entry)

    def range(self, start: int | None = None, end: int | None = None) -> list[tuple[int, E]]:
        """The entries from ``start`` to ``end``, both inclusive, None for open, ascending."""
        chosen = [
            number for number in self.ids() if (start is None or number >= start) and (end is None or number <= end)
        ]
        read = [(number, self.get(number)) for number in chosen]
        return [(number, entry) for number, entry in read if entry is not None]

    def find_gap(self) -> Gap | None:
        """A missing number that has lower ones, if it lies in the part that is looked at now; None if that part is
        whole. The log's end determines the part, so every part gets its turn as the log grows."""
        newest = self.newest_seen()
        if newest is None:
            return None
        spans = {} if self._segments is None else self._segments.spans(fresh=True)
        for (_, last), (first, _) in pairwise(spans.items()):
            if first > last + 1:
                return self._confirmed(last + 1)
        lowest = self._lowest()
        if lowest > newest or (lowest > 0 and self.has(lowest - 1)):
            lowest = 0  # retention is at work, or a foreign file lies there: the log does not begin there
        low = max([lowest, *(last + 1 for last in spans.values())])
        part = newest % max(1, -(-(newest - low) // LOOKED_AT))
        begin = low + part * LOOKED_AT
        wanted = range(begin, min(begin + LOOKED_AT, newest))
        for number in sorted(set(wanted) - self._present(wanted)):
            if self._bytes(number) is None:
                return self._confirmed(number)
        return None

    def _confirmed(self, missing: int) -> Gap | None:
        """The gap, unless the log begins after it. Listed again while the beginning moves: retention may be at work."""
        self._hinted = None
        ids = self.ids()
        while (again := self.ids())[:1] != ids[:1]:
            ids = again
        if not ids or missing < ids[0]:
            self._leave_lowest(ids[0] if ids else 0)
            return None
        after = min((number for number in again if number > missing), default=None)
        return None if missing in again or after is None else Gap(missing=missing, after=after)

    def _lowest(self) -> int:
        """Where the log begins, as far as a hint tells; entries above that number may be gone all the same."""
        if self._hinted is None:
            self._hinted = self._hint_names()
        return max(
            numbers([name.removeprefix(_LOWEST) for name in self._hinted if name.startswith(_LOWEST)]), default=0
        )

    def _hint_names(self) -> list[str]:
        """All hints. Nothing depends on hints, so hints that cannot be listed count as none."""
        try:
            return [] if self._hints is None else self._hints.list("")
        except CheckpointError as error:
            log.warning("the hints of %s cannot be listed: %s", self.location, error)
            return []

    def _leave_lowest(self, batch_id: int) -> None:
        if self._hints is None or self._lowest() == batch_id:
            return
        try:
            self._hints.put_if_absent(f"{_LOWEST}{batch_id}", b"")
            for name in self._hints.list(""):
                if name.startswith(_LOWEST) and name != f"{_LOWEST}{batch_id}":
                    self._hints.delete(name)
            self._hinted = None
        except CheckpointError as error:
            log.warning("no hint was left that %s begins at %s: %s", self.location, batch_id, error)

    def is_compacted(self, batch_id: int) -> bool:
        """Whether the entry lies in a segment, which cannot be changed. One listing."""
        return self._segments is not None and self._segments.first_of(batch_id, fresh=True) is not None

    def purgeable(self, before_id: int) -> int:
        """The highest number up to ``before_id`` that :meth:`purge` can reach: it removes whole segments."""
        first = None if self._segments is None else self._segments.first_of(before_id, fresh=True)
        return before_id if first is None else first

    def purge(self, before_id: int, *, may_go: Callable[[], bool] = lambda: True) -> int:
        """Remove the entries below ``before_id``, oldest first, so that a crash leaves no gap.

        :param may_go: asked right before each removal; the remaining entries stay once it says no.
        :return: how many were removed.
        """
        removed = 0
        self._leave_lowest(before_id)
        if self._segments is not None:
            for first, last in list(self._segments.spans(fresh=True).items()):
                if last < before_id and may_go() and self._segments.remove(first):
                    removed += last - first + 1
        loose = sorted(number for number in numbers(self._store.list("")) if number < before_id)
        return removed + sum(self._store.delete(str(number)) for number in takewhile(lambda _: may_go(), loose))

    def compactable(self, before_id: int) -> list[tuple[int, int]]:
        """First and last number of the segments that :meth:`compact` would write. One listing."""
        loose = sorted(number for number in numbers(self._store.list("")) if number < before_id)
        found = []
        for start in range(0, before_id - SEGMENT_SIZE + 1, SEGMENT_SIZE):
            low, high = bisect_left(loose, start), bisect_left(loose, start + SEGMENT_SIZE)
            # Retention may have taken the first entries; compaction leaves a span with another gap alone.
            if (
                low < high
                and loose[high - 1] == start + SEGMENT_SIZE - 1
                and loose[high - 1] - loose[low] == high - low - 1
            ):
                found.append((loose[low], loose[high - 1]))
        return found

    def compact(self, before_id: int) -> int:
        """Move entries below ``before_id`` into segments, as many as fill whole ones. May be called again after a crash
        at any point. Entries that cannot be read stay where they are, with all of their segment.

        :return: how many were moved.
        :raises CorruptEntryError: naming an entry that cannot be read.
        """
        if self._segments is None:
            return 0
        moved = 0
        spans = self._segments.spans(fresh=True)
        for first, last in self.compactable(before_id):
            inside = range(first, last + 1)
            if not any(low <= first and last <= high for low, high in spans.items()):
                entries = {number: self._store.get(str(number)) or b"" for number in inside}
                for number, data in entries.items():
                    self._decode(data, where=self.where(number))
                self._segments.put(entries)
                if self._segments.entries(first) != entries:
                    raise CheckpointError(
                        f"the segment {first}-{last} of {self.location} does not hold what was written. The entries "
                        "stay where they are; look at the storage."
                    )
            self._store.delete_many(map(str, inside))
            moved += len(inside)
        return moved

    def expand(self) -> int:
        """Undo :meth:`compact`: every entry is a file of its own again, as Spark needs. May be called again.

        :return: how many were moved.
        """
        moved = 0
        if self._segments is not None:
            for first in list(self._segments.spans(fresh=True)):
                for number, data in self._segments.entries(first).items():
                    if not self._store.put_if_absent(str(number), data) and self._store.get(str(number)) != data:
                        self._store.delete(str(number))
                        self._store.put_if_absent(str(number), data)
                    moved += 1
                self._segments.remove(first)
        return moved

    def where(self, batch_id: int) -> str:
        """Address of an entry, for messages."""
        return f"{self._store.location}/{batch_id}"


def numbers(names: list[str]) -> list[int]:
    """The names that are numbers as a log writes them, without a leading zero or digits of other alphabets."""
    return [int(name) for name in names if name.isascii() and name.isdecimal() and str(int(name)) == name]


def spans_of(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """First and last of each run of consecutive numbers."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return tuple(found)
