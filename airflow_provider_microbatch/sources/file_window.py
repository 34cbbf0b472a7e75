"""The files of an interval: which no batch has, and which batches have the others. A value; touches no file."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sources.file_listing import FoundFile
from airflow_provider_microbatch.sources.file_log import PlannedFile, log_id
from airflow_provider_microbatch.sources.intervals import HeldRange, HeldRanges, Interval, IntervalSurvey


class FileWindow:
    """One look at source log and listing, seen through an interval of the files' mtimes.

    :param interval: the interval; its lookback counts for files that are in no entry.
    :param lane: the lane that asks.
    :param latest: the highest log id.
    :param planned: every file of the source log.
    :param found: files that are there and in no entry.
    :param settled: whether such a file has been quiet for long enough to be read.
    """

    def __init__(
        self,
        interval: Interval,
        *,
        lane: str,
        latest: int,
        planned: Sequence[PlannedFile],
        found: Iterable[FoundFile],
        settled: Callable[[FoundFile], bool],
    ) -> None:
        begin = (interval.start_ms - interval.lookback_ms) * 1_000_000
        end = interval.end_ms * 1_000_000
        self.latest = latest
        unread = [file for file in found if begin <= file.mtime_ns < end]
        self.unread = sorted(filter(settled, unread), key=lambda file: (file.mtime_ns, file.path))
        self._unsettled = len(unread) - len(self.unread)
        self.own = next((file.log_id for file in planned if file.lane == lane), None)
        """Log id of the entry that the lane has already."""
        # Entries that Spark wrote hold milliseconds only, which is enough: so does the interval.
        self._taken = [
            file
            for file in planned
            if file.lane != lane and interval.start_ms <= file.timestamp_ms < interval.end_ms
        ]  # fmt: skip

    def survey(self, held: HeldRanges) -> IntervalSurvey:
        """:param held: what the batches of all lanes read of this source."""
        holders: dict[tuple[str, int], BatchKey | None] = {}
        elsewhere = 0
        for file in self._taken:
            where = (file.lane, file.log_id)
            if where not in holders:
                holders[where] = _holder(held.get(file.lane, ()), file.log_id)
            elsewhere += holders[where] is None
        found = frozenset(key for key in holders.values() if key is not None)
        unread = bool(self.unread) or self.own is not None
        return IntervalSurvey(unread=unread, holders=found, elsewhere=elsewhere, unsettled=self._unsettled)


def _holder(ranges: Sequence[HeldRange], number: int) -> BatchKey | None:
    # The batches of a lane follow each other, so the first that ends at or after the entry is the only candidate.
    first = bisect_left(ranges, number, key=lambda held: log_id(held.end))
    if first == len(ranges) or number <= log_id(ranges[first].start):
        return None
    return ranges[first].key
