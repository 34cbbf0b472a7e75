"""What a source is asked about an interval of its clock, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import IntervalError

if TYPE_CHECKING:
    from pendulum import DateTime


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Data whose source time is in ``[start_ms, end_ms)``, and what came late for other intervals.

    :param start_ms: milliseconds since the epoch, UTC.
    :param end_ms: milliseconds since the epoch, UTC; not part of the interval.
    :param first_ms: where the first data interval of the schedule begins: what lies before it belongs to no other. None
        if that is not known.
    :param late: start and end (not part of it) of spans before ``start_ms`` in which data is late: their own interval
        has had its run, or there is none. What no batch has read of them is read too.
    :raises IntervalError: if the interval is empty.
    """

    start_ms: int
    end_ms: int
    first_ms: int | None = None
    late: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.start_ms >= self.end_ms:
            raise IntervalError(f"the data interval {self} is empty: no data is in it, whatever there is.")

    @classmethod
    def between(cls, start: datetime, end: datetime, *, first: datetime | None = None) -> Self:
        """The interval between two moments, each to the millisecond.

        :param start: a moment with a time zone.
        :param end: likewise.
        :param first: when the first interval of the schedule begins, likewise; None if that is not known.
        :raises IntervalError: if the interval is empty.
        """
        import pendulum

        def ms(moment: datetime) -> int:
            return round(pendulum.instance(moment).float_timestamp * 1000)

        return cls(start_ms=ms(start), end_ms=ms(end), first_ms=None if first is None else ms(first))

    def takes(self, ms: float) -> bool:
        """Whether data of this source time, if no batch has read it, is for the interval's run."""
        return self.start_ms <= ms < self.end_ms or any(start <= ms < end for start, end in self.late)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What a sensor has handed to its trigger, of this version or another."""
        return cls(start_ms=values["start_ms"], end_ms=values["end_ms"], first_ms=values.get("first_ms"))

    @property
    def start(self) -> DateTime:
        """The first moment, in UTC."""
        return _moment(self.start_ms)

    @property
    def end(self) -> DateTime:
        """The first moment after it, in UTC."""
        return _moment(self.end_ms)

    def __str__(self) -> str:
        return f"[{_written(self.start)}, {_written(self.end)})"


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


@dataclass(frozen=True, kw_only=True)
class CommittedRange:
    """How a committed batch has moved its lane's position in a source.

    :param start: where it was before.
    :param end: where it is after it; before ``start``, if a command has set it back.
    :param is_read: whether what lies between is in the sink. It is not if the batch is set aside, or was made by a
        command that passed something over.
    """

    start: Offset | None
    end: Offset | None
    is_read: bool


HeldRanges = Mapping[str, Sequence[HeldRange]]
"""By lane, the ranges of its batches in order. Read from the logs lane by lane, when asked for."""


@dataclass(frozen=True, kw_only=True)
class Unread:
    """Data that no batch of any lane holds.

    :param count: how many splits of the source.
    :param splits: what the source calls them.
    :param first_ms: its oldest, by the source's clock; milliseconds since the epoch, UTC.
    :param last_ms: its newest, likewise.
    """

    count: int
    first_ms: int
    last_ms: int
    splits: str = "splits"

    @classmethod
    def of(cls, times_ms: Sequence[int], *, splits: str = "splits") -> Self | None:
        """By the time of each split; None if there is none."""
        if not times_ms:
            return None
        return cls(count=len(times_ms), first_ms=min(times_ms), last_ms=max(times_ms), splits=splits)


@dataclass(frozen=True, kw_only=True)
class IntervalSurvey:
    """What a source has in an interval.

    :param unread: whether there is data, late data included, that no batch of any lane holds; or that was set apart for
        the asking lane already, by a plan that died.
    :param holders: batches of other lanes that hold data of the interval.
    :param splits: what the source calls its smallest units, of which there are so many ``unsettled``, ``elsewhere`` and
        ``left``.
    :param unsettled: how much unread data of the interval is too young to be read now.
    :param elsewhere: how much of the interval is held by a batch that the logs do not have: retention removed it, or it
        is being planned right now.
    :param left: how much of that the live lane took for a batch that it has not got any more: only the live lane will
        ever read it.
    :param passed: what lies before the interval, is not late for it, and no batch of any lane holds: unless a run for
        it is on its way, nobody reads it. None if there is none, or the source does not tell.
    """

    unread: bool
    holders: frozenset[BatchKey] = frozenset()
    splits: str = "splits"
    elsewhere: int = 0
    left: int = 0
    unsettled: int = 0
    passed: Unread | None = None


def written_ms(ms: int) -> str:
    """A moment, milliseconds since the epoch, as messages have it."""
    return _written(_moment(ms))


def _moment(ms: int) -> DateTime:
    import pendulum

    return pendulum.from_timestamp(ms / 1000)


def _written(moment: DateTime) -> str:
    return moment.format("YYYY-MM-DD[T]HH:mm:ss.SSS[Z]" if moment.microsecond else "YYYY-MM-DD[T]HH:mm:ss[Z]")
