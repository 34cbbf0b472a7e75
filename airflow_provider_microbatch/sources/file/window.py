"""The files of an interval: those that no batch has, and the batches that have the others. A value; touches no file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.sources.file.listing import FoundFile
from airflow_provider_microbatch.sources.file.log import NOTHING, PlannedFile, log_id
from airflow_provider_microbatch.sources.intervals import HeldRange, HeldRanges, Interval, IntervalSurvey, Unread

SPLITS = "files"
"""The name of the source's smallest units."""


class FileWindow:
    """One look at source log and listing, restricted to an interval of the files' mtimes.

    :param interval: the interval; its late spans count for files that are in no entry.
    :param lane: the lane that asks.
    :param latest: the highest log id.
    :param planned: every file of the source log, in order; iterated once.
    :param found: files that exist and are in no entry.
    :param settled: whether such a file has not changed for long enough to be read.
    """

    def __init__(
        self,
        interval: Interval,
        *,
        lane: str,
        latest: int,
        planned: Iterable[PlannedFile],
        found: Iterable[FoundFile],
        settled: Callable[[FoundFile], bool],
    ) -> None:
        self.latest = latest
        unread, passed = list[FoundFile](), list[int]()
        for file in found:
            ms = file.mtime_ns // 1_000_000
            if interval.takes(ms):
                unread.append(file)
            elif ms < interval.start_ms:
                passed.append(ms)
        self._passed = Unread.of(passed, splits=SPLITS)
        self.unread = sorted(filter(settled, unread), key=lambda file: (file.mtime_ns, file.path))
        self._unsettled = len(unread) - len(self.unread)
        self.own: int | None = None
        """Log id of the entry that the lane has already."""
        self._taken: list[PlannedFile] = []
        for one in planned:
            if one.lane == lane:
                self.own = one.log_id if self.own is None else self.own
            # Entries that Spark wrote hold milliseconds only, which is enough: the interval does too.
            elif interval.start_ms <= one.timestamp_ms < interval.end_ms:
                self._taken.append(one)

    def survey(self, held: HeldRanges) -> IntervalSurvey:
        """:param held: the ranges of this source that the batches of all lanes read."""
        found, takers = set[BatchKey](), set[str]()
        elsewhere = left = 0
        live_end = max((log_id(one.end) for one in held.get(LIVE, ())), default=NOTHING)
        for lane in {file.lane for file in self._taken}:
            files = Counter(file.log_id for file in self._taken if file.lane == lane)
            held_here = _holders(held.get(lane, ()), files.keys())
            found.update(key for keys in held_here.values() for key in keys)
            without = sum(count for number, count in files.items() if number not in held_here)
            elsewhere += without
            takers.update([lane] if without and lane != LIVE else [])
            left += sum(count for number, count in files.items() if lane == LIVE and number > live_end)
        unread = bool(self.unread) or self.own is not None
        return IntervalSurvey(
            unread=unread,
            holders=frozenset(found),
            splits=SPLITS,
            elsewhere=elsewhere,
            takers=frozenset(takers),
            left=left,
            unsettled=self._unsettled,
            passed=self._passed,
        )


def _holders(ranges: Sequence[HeldRange], numbers: Collection[int]) -> dict[int, list[BatchKey]]:
    """The batches that each of these log ids belongs to: one, or more where a command has set the position back."""
    found: dict[int, list[BatchKey]] = {}
    for one in ranges:
        for number in range(log_id(one.start) + 1, log_id(one.end) + 1):
            if number in numbers:
                found.setdefault(number, []).append(one.key)
    return found
