"""Data intervals beside the logs: the lane of an interval, and what the batches of all lanes read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.execution.position import starts_of
from airflow_provider_microbatch.sources.intervals import HeldRange, Interval

PREFIX = "interval-"
"""How the names of all lanes of data intervals begin."""


def lane_of(interval: Interval) -> str:
    """Name of the interval's lane, the same whoever asks: ``interval-20260101T000000Z-20260102T000000Z``."""
    return f"{PREFIX}{_stamp(interval.start_ms)}-{_stamp(interval.end_ms)}"


def batch_of(interval: Interval) -> BatchKey:
    """The one batch of the interval."""
    return BatchKey(lane_of(interval), 0)


class LaneRanges(Mapping[str, Sequence[HeldRange]]):
    """What the batches of each lane read of one source. A lane is read when it is asked for.

    :param checkpoint: whose logs.
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


def _stamp(ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1000, tz=UTC)
    return moment.strftime("%Y%m%dT%H%M%S") + (f".{ms % 1000:03d}" if ms % 1000 else "") + "Z"
