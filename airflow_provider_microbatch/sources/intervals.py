"""What a source is asked about an interval of its clock, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import IntervalError


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Data whose source time is in ``[start_ms, end_ms)``.

    :param start_ms: milliseconds since the epoch, UTC.
    :param end_ms: milliseconds since the epoch, UTC; not part of the interval.
    :param lookback_ms: how long before ``start_ms`` late data is looked for: that which no batch has read.
    :raises IntervalError: if the interval is empty.
    """

    start_ms: int
    end_ms: int
    lookback_ms: int = 0

    def __post_init__(self) -> None:
        if self.start_ms >= self.end_ms:
            raise IntervalError(f"the data interval {self} is empty: no data is in it, whatever there is.")

    def __str__(self) -> str:
        return f"[{_moment(self.start_ms)}, {_moment(self.end_ms)})"


@dataclass(frozen=True, kw_only=True)
class HeldRange:
    """What a batch of the logs reads of a source, committed or not.

    :param key: the batch.
    :param start: where its range begins, exclusive as the source defines it.
    :param end: where it ends.
    """

    key: BatchKey
    start: Offset | None
    end: Offset | None


HeldRanges = Mapping[str, Sequence[HeldRange]]
"""By lane, the ranges of its batches in order. Read from the logs lane by lane, when asked for."""


@dataclass(frozen=True, kw_only=True)
class IntervalSurvey:
    """What a source has in an interval.

    :param unread: whether there is data, late data included, that no batch of any lane holds; or that was set apart for
        the asking lane already, by a plan that died.
    :param holders: batches of other lanes that hold data of the interval.
    :param unsettled: how much unread data of the interval, in units of the source, is too young to be read now.
    :param elsewhere: how much of the interval, in units of the source (files), is held by a batch that the logs do not
        have: retention removed it, or it is being planned right now.
    """

    unread: bool
    holders: frozenset[BatchKey] = frozenset()
    elsewhere: int = 0
    unsettled: int = 0


def _moment(ms: int) -> str:
    timespec = "milliseconds" if ms % 1000 else "seconds"
    return datetime.fromtimestamp(ms / 1000, tz=UTC).isoformat(timespec=timespec).replace("+00:00", "Z")
