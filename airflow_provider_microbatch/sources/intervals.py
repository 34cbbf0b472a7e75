"""The questions that a source is asked about an interval of its clock, and the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import IntervalError

if TYPE_CHECKING:
    from pendulum import DateTime


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Data whose source time is in ``[start_ms, end_ms)``, and data that came late for other intervals.

    :param start_ms: milliseconds since the epoch, UTC.
    :param end_ms: milliseconds since the epoch, UTC; not part of the interval.
    :param first_ms: the moment at which the first data interval of the schedule begins: earlier data belongs to no
        other interval. None if the moment is not known.
    :param late: start and end (exclusive) of spans before ``start_ms`` in which data is late: their own interval has
        had its run, or there is none. Data in these spans that no batch has read is read too.
    :param whole: whether no lane reads data of the interval that comes behind its batch. As long as such data may come
        a source plans nothing, whatever its survey has found before.
    :raises IntervalError: if the interval is empty.
    """

    start_ms: int
    end_ms: int
    first_ms: int | None = None
    late: tuple[tuple[int, int], ...] = ()
    whole: bool = False

    def __post_init__(self) -> None:
        if self.start_ms >= self.end_ms:
            raise IntervalError(f"the data interval {self} is empty: no data is in it, whatever there is.")

    @classmethod
    def between(cls, start: datetime, end: datetime, *, first: datetime | None = None) -> Self:
        """Return the interval between two moments, each rounded to the millisecond.

        :param start: a moment with a time zone.
        :param end: a moment with a time zone.
        :param first: the moment at which the first interval of the schedule begins, with a time zone; None if not
            known.
        :raises IntervalError: if the interval is empty.
        """
        import pendulum

        def ms(moment: datetime) -> int:
            return round(pendulum.instance(moment).float_timestamp * 1000)

        return cls(start_ms=ms(start), end_ms=ms(end), first_ms=None if first is None else ms(first))

    def takes(self, ms: float) -> bool:
        """Whether the interval's run takes data of this source time, provided that no batch has read the data."""
        return self.start_ms <= ms < self.end_ms or any(start <= ms < end for start, end in self.late)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Restore the interval from the values that a sensor, of this version or another, has passed to its trigger."""
        return cls(start_ms=values["start_ms"], end_ms=values["end_ms"], first_ms=values.get("first_ms"))

    @property
    def start(self) -> DateTime:
        """The first moment, in UTC."""
        return _moment(self.start_ms)

    @property
    def end(self) -> DateTime:
        """The first moment after the interval, in UTC."""
        return _moment(self.end_ms)

    def __str__(self) -> str:
        return f"[{_written(self.start)}, {_written(self.end)})"


@dataclass(frozen=True, kw_only=True)
class HeldRange:
    """The range of a source that a batch in the logs reads, committed or not.

    :param key: the batch.
    :param start: start of the range, exclusive as the source defines it.
    :param end: end of the range.
    """

    key: BatchKey
    start: Offset | None
    end: Offset | None


@dataclass(frozen=True, kw_only=True)
class CommittedRange:
    """How a committed batch has moved its lane's position in a source.

    :param start: the position before the batch.
    :param end: the position after the batch; before ``start``, if a command has set the position back.
    :param is_read: whether the data between both positions is in the sink. False if the batch is set aside, or was made
        by a command that passed data over.
    :param told: returns what the reader told of the attempt whose output is in the sink; empty where that is not known.
    """

    start: Offset | None
    end: Offset | None
    is_read: bool
    told: Callable[[], Mapping[str, Any]] = field(default=dict, compare=False)


HeldRanges = Mapping[str, Sequence[HeldRange]]
"""The ranges of the batches of each lane, in order. The logs are read lane by lane, when a lane is asked for."""


@dataclass(frozen=True, kw_only=True)
class Unread:
    """Data that no batch of any lane holds.

    :param count: number of splits.
    :param splits: the source's name for its splits.
    :param first_ms: the oldest split by the source's clock; milliseconds since the epoch, UTC.
    :param last_ms: the newest split by the source's clock; milliseconds since the epoch, UTC.
    """

    count: int
    first_ms: int
    last_ms: int
    splits: str = "splits"

    @classmethod
    def of(cls, times_ms: Sequence[int], *, splits: str = "splits") -> Self | None:
        """Summarise splits from their times; None if there are no splits."""
        if not times_ms:
            return None
        return cls(count=len(times_ms), first_ms=min(times_ms), last_ms=max(times_ms), splits=splits)


@dataclass(frozen=True, kw_only=True)
class IntervalSurvey:
    """The data that a source has in an interval.

    :param unread: whether there is data, late data included, that no batch of any lane holds, or that a plan which died
        has already reserved for the asking lane.
    :param holders: batches of other lanes that hold data of the interval.
    :param splits: the source's name for its smallest units, in which ``unsettled``, ``elsewhere`` and ``left`` count.
    :param unsettled: how much unread data of the interval is too young to be read now.
    :param elsewhere: how much data of the interval belongs to a batch that the logs do not have: retention removed the
        batch, or it is being planned at the moment.
    :param takers: lanes of data intervals that have taken data that ``elsewhere`` counts.
    :param left: how much of ``elsewhere`` the live lane took for a batch that it no longer has: only the live lane will
        ever read that data.
    :param passed: data before the interval that is not late for it and that no batch of any lane holds: unless a run
        for that data is on its way, no run reads it. None if there is none, or if the source does not tell; it need not
        for an interval that is not ``whole``.
    :param waits: the reason, in words, why data may still come that the interval's run is to read, although nobody sees
        it yet; None if the source does not know of any.
    """

    unread: bool
    holders: frozenset[BatchKey] = frozenset()
    splits: str = "splits"
    elsewhere: int = 0
    takers: frozenset[str] = frozenset()
    left: int = 0
    unsettled: int = 0
    passed: Unread | None = None
    waits: str | None = None


@runtime_checkable
class TellsLanes(Protocol):
    """An opened source that tells for which data intervals something was taken of it, as each source with a clock
    does."""

    def taken_by(self) -> set[str]:
        """The lanes of data intervals that have taken data, whether the logs have their batches or not. Writes
        nothing."""


@runtime_checkable
class TellsOthers(Protocol):
    """An opened source that may have other data under its name by now, as a table that was made again has."""

    def why_untold(self, interval: Interval) -> str | None:
        """The reason why nobody knows which data of an interval lanes have taken; None if it is known, as far as can be
        told. Writes nothing."""


def no_clock(source: object) -> IntervalError:
    """The error of a source that is asked about an interval and has no clock."""
    return IntervalError(
        f"a {type(source).__name__} has no clock that tells which of its data belongs to a data interval. Its "
        "pipeline can be run as new data comes and replayed batch by batch, but not be backfilled."
    )


def written_ms(ms: int) -> str:
    """Format a moment, milliseconds since the epoch, for messages."""
    return _written(_moment(ms))


def _moment(ms: int) -> DateTime:
    import pendulum

    return pendulum.from_timestamp(ms / 1000)


def _written(moment: DateTime) -> str:
    return moment.format("YYYY-MM-DD[T]HH:mm:ss.SSS[Z]" if moment.microsecond else "YYYY-MM-DD[T]HH:mm:ss[Z]")
