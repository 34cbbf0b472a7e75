"""Data intervals beside the logs: the lane of an interval, and the ranges that the batches of all lanes read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import OF_INTERVAL, BatchKey, span_of
from airflow_provider_microbatch.execution.position import starts_of
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.sources.intervals import HeldRange, Interval, TellsLanes, written_ms

if TYPE_CHECKING:
    from pendulum import DateTime


def lane_of(interval: Interval) -> str:
    """Name of the interval's lane, the same for every caller: ``interval-20260101T000000Z-20260102T000000Z``."""
    return f"{OF_INTERVAL}{_stamp(interval.start)}-{_stamp(interval.end)}"


def batch_of(interval: Interval) -> BatchKey:
    """The one batch of the interval."""
    return BatchKey(lane_of(interval), 0)


def in_words(lane: str) -> str | None:
    """The data interval that the lane belongs to, for messages; None if it belongs to none."""
    span = span_of(lane)
    return None if span is None else f"[{written_ms(span[0])}, {written_ms(span[1])})"


def read_only_by(lane: str) -> str:
    """The way on with what an interval's lane has taken and has no batch of. No log tells which run that was: under
    another plan or schedule its clear would read other data, in green."""
    return (
        f"Only a run of exactly the data interval {in_words(lane)} reads it: backfill exactly that interval. Its own "
        f"run reads it too, cleared while plan and schedule are what they were then. {in_the_way(lane)}".rstrip()
    )


def in_the_way(lane: str) -> str:
    """What may keep Airflow from a backfill of just the lane's interval, for messages: it names a run by where the
    interval ends, and makes none of a name that there is, in silence, whatever it is told to reprocess. Empty for a
    lane of no interval."""
    span = span_of(lane)
    if span is None:
        return ""
    name = f"backfill__{datetime.fromtimestamp(span[1] / 1000, UTC).isoformat()}"
    return (
        f"A run {name!r} of another interval that ends then too, as under a schedule of before, has to be deleted "
        "first: else the backfill makes no run, and does not say so."
    )


def taken_by(source: OpenSource) -> set[str]:
    """Lanes of data intervals that have taken data of the source, whether they have a batch or not."""
    lanes = source.taken_by() if isinstance(source, TellsLanes) else set()
    return {lane for lane in lanes if span_of(lane) is not None}


def without_batch(checkpoint: Checkpoint, taken: Iterable[str]) -> list[str]:
    """Lanes that have no batch of what they have taken: it was rewound, or a process died or another source refused
    before it was planned. No other lane reads that data.

    :param taken: lanes, as told by :func:`taken_by` before: whoever plans a batch takes its data first.
    """
    return [lane for lane in sorted(taken) if checkpoint.lane(lane).offset_log.latest_id() is None]


def late_spans(
    checkpoint: Checkpoint, interval: Interval, *, lookback_ms: int, none_on_its_way: bool
) -> tuple[tuple[int, int], ...]:
    """Spans up to ``lookback_ms`` before the interval whose data is late: intervals that had their run, and the time
    before the first interval. Data of the rest is left to its own run, which may be on its way: runs come at once and
    in any order.

    :param none_on_its_way: no run is on its way to any earlier interval, and Airflow makes none by itself: then all
        data there is late.
    """
    if not lookback_ms:
        return ()
    start = interval.start_ms - lookback_ms
    if none_on_its_way:
        return ((start, interval.start_ms),)
    runs = checkpoint.intervals
    spans = [span for span in map(span_of, runs.lanes()) if span is not None]
    spans += [(start, span[1]) for span in map(span_of, runs.older(newest_of(checkpoint.lanes()))) if span is not None]
    first = interval.first_ms
    # A user that backfills data from before the first interval has other intervals there.
    if first is not None and first <= interval.start_ms and not any(begin < first for begin, _ in spans):
        spans.append((start, first))
    cut = ((max(begin, start), min(end, interval.start_ms)) for begin, end in spans)
    return tuple(sorted(span for span in cut if span[0] < span[1]))


def newest_of(lanes: Iterable[str]) -> str | None:
    """The lane whose interval ends last; None if no lane is of an interval."""
    ends = {lane: span[1] for lane, span in ((lane, span_of(lane)) for lane in lanes) if span is not None}
    return max(ends, key=lambda lane: ends[lane], default=None)


def longest_of(lanes: Iterable[str]) -> int:
    """Length of the lanes' longest interval, milliseconds; 0 if no lane is of an interval."""
    return max((span[1] - span[0] for span in map(span_of, lanes) if span is not None), default=0)


class LaneRanges(Mapping[str, Sequence[HeldRange]]):
    """The ranges of one source that the batches of each lane read. A lane is read when it is asked for.

    :param checkpoint: the checkpoint with the logs.
    :param source: name of the source.
    """

    def __init__(self, checkpoint: Checkpoint, source: str) -> None:
        self._checkpoint = checkpoint
        self._source = source
        self._read: dict[str, Sequence[HeldRange]] = {}

    def __getitem__(self, name: str) -> Sequence[HeldRange]:
        if name not in self._read:
            self._read[name] = list(self._ranges(name))
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._checkpoint.lanes())

    def __len__(self) -> int:
        return len(self._checkpoint.lanes())

    def _ranges(self, name: str) -> Iterator[HeldRange]:
        lane = self._checkpoint.lane(name)
        for number in lane.offset_log.ids():
            entry = lane.offset_log.get(number)
            if entry is not None and self._source in entry.ends:
                start = starts_of(lane, number, entry).get(self._source)
                yield HeldRange(key=BatchKey(name, number), start=start, end=entry.ends[self._source])


def _stamp(moment: DateTime) -> str:
    return moment.format("YYYYMMDD[T]HHmmss.SSS[Z]" if moment.microsecond else "YYYYMMDD[T]HHmmss[Z]")
