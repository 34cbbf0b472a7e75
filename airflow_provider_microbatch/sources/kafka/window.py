"""The records of an interval: those that no batch has, and the batches that have the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from airflow_provider_microbatch.checkpoint.entries import SKEW_MS
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey, span_of
from airflow_provider_microbatch.exceptions import IntervalError
from airflow_provider_microbatch.kafka.cluster import Cluster, Partition, Position, Record, named
from airflow_provider_microbatch.sources.intervals import (
    HeldRange,
    HeldRanges,
    Interval,
    IntervalSurvey,
    Unread,
    written_ms,
)
from airflow_provider_microbatch.sources.kafka.pieces import Pieces
from airflow_provider_microbatch.sources.kafka.taken import Taken
from airflow_provider_microbatch.sources.pieces import Piece, without

SPLITS = "offsets"
"""The name of the source's smallest units."""

_LEAST_BACK_MS = 60_000


class Times:
    """Places in the topics by the records' timestamps, as one look has them.

    :param earliest: the first offset of each partition that is still there.
    :param latest: the next offset of each partition to be read.
    :param highest: the same, whether transactions are open or not.
    :param now_ms: the time, milliseconds since the epoch.
    """

    def __init__(
        self, cluster: Callable[[], Cluster], *, earliest: Position, latest: Position, highest: Position, now_ms: int
    ) -> None:
        self._cluster = cluster
        self._earliest = earliest
        self._latest = latest
        self._highest = highest
        self._now_ms = now_ms
        self._found: dict[int, Mapping[Partition, Record | None]] = {}

    def of_spans(self, spans: Iterable[tuple[int, int]]) -> Pieces:
        """Return the records in spans of time, by their timestamps: from the first record at or after a span's start up
        to the first record at or after its end. Adjacent spans therefore contain each record once, even a record whose
        time is older than that of a record before it.

        :param spans: start and end (exclusive), milliseconds since the epoch, UTC.
        :raises IntervalError: if a span ends at a record with a future time: the records behind it would be in no
            earlier span.
        """
        found = Pieces()
        for start_ms, end_ms in spans:
            end = self.at(end_ms)
            found |= Pieces.between({one: max(self._earliest[one], at) for one, at in self.at(start_ms).items()}, end)
        return found

    def at(self, ms: int) -> dict[Partition, int]:
        """Where the records of that time or later begin, of those that can be read."""
        latest = self._latest
        return {one: latest[one] if it is None else min(latest[one], it.offset) for one, it in self._since(ms).items()}

    def earlier(self, ms: int) -> Pieces:
        """The records that lie before those of that time or later."""
        return Pieces.between(self._earliest, self.at(ms))

    def all_since(self, ms: int) -> dict[Partition, int]:
        """The partitions that have lost records, and in which none lies before those of that time or later: what is
        gone may have been of that time, too. Each with its first offset that is still there."""
        return {one: at for one, at in self.at(ms).items() if 0 < at == self._earliest[one]}

    def open_before(self, ms: int) -> list[Partition]:
        """The partitions in which an open transaction holds up records that lie before those of that time or later."""
        behind = [one for one, at in self._latest.items() if at < self._highest[one]]
        found = self._since(ms) if behind else {}
        return [one for one in behind if (it := found[one]) is None or it.offset > self._latest[one]]

    def _since(self, ms: int) -> Mapping[Partition, Record | None]:
        if ms not in self._found:
            found = self._cluster().since(self._latest, ms)
            for one, record in found.items():
                if record is not None and record.time_ms > self._now_ms + SKEW_MS:
                    raise _of_the_future(one, record)
            self._found[ms] = found
        return self._found[ms]


@dataclass(frozen=True, kw_only=True)
class Window:
    """The records of an interval, as one look at the topics has them.

    :param inside: those in the interval.
    :param wanted: the same, and those that are late for the interval.
    """

    interval: Interval
    times: Times
    inside: Pieces
    wanted: Pieces

    @classmethod
    def of(cls, interval: Interval, times: Times) -> Self:
        """Look at the topics.

        :raises IntervalError: if a record with a future time is in the way.
        """
        inside = times.of_spans([(interval.start_ms, interval.end_ms)])
        return cls(interval=interval, times=times, inside=inside, wanted=inside | times.of_spans(interval.late))

    @property
    def waits(self) -> str | None:
        """Why records of the interval may still come to light, of those that the topics have; None if none can. Once
        the interval has its batch, a record of it that is committed later is in no interval."""
        held = self.times.open_before(self.interval.end_ms)
        if not held:
            return None
        return (
            f"records of {self.interval} in {', '.join(map(named, held))} are held up by a transaction that is open, "
            "and cannot be read before it is over"
        )

    def gone(self, had: Callable[[], Pieces], *, taken: Taken) -> Pieces:
        """The records that are gone, that nobody has read and that may have been of the interval. What was gone before
        anything was read of its partition was promised to nobody; nor is anything of the interval gone while a record
        is there that lies before it. A gap between what an earlier interval and a later one have taken is of each that
        lies between them.

        :param had: returns what lanes have taken.
        :param taken: what lanes of intervals have taken, each.
        """
        found = list[tuple[Partition, Piece]]()
        may_be = self.times.all_since(self.interval.start_ms)
        known = had().of if may_be else {}
        for one, earliest in may_be.items():
            pieces = known.get(one, ())
            begun = [(start, earliest) for start, _ in pieces[:1] if start < earliest]
            found += [(one, gap) for gap in without(begun, pieces)]
        gaps = Pieces.made(found)
        return gaps - self._of_others(gaps, taken) if gaps else gaps

    def _of_others(self, gaps: Pieces, taken: Taken) -> Pieces:
        """Those that intervals beside this one are told of. This one would be refused for such a gap in vain, or its
        batch would tell of it, and none where it belongs.

        Before what an earlier interval has taken no record of this one lies. A gap that begins where the records end
        that a later interval has taken is of one behind that; unless records are left of before the later interval:
        what it has taken was late for it then.
        """
        found = list[tuple[Partition, Piece]]()
        for lane in taken.lanes():
            span = span_of(lane)
            if span is None or (span[0] < self.interval.end_ms and self.interval.start_ms < span[1]):
                continue
            theirs = (taken.by_lane(lane) or Pieces()).of
            if span[1] <= self.interval.start_ms:
                found += [(one, gap) for one, gap in gaps if one in theirs and gap[1] <= theirs[one][-1][0]]
            elif behind := [(one, gap) for one, gap in gaps if gap[0] in {end for _, end in theirs.get(one, ())}]:
                since = self.times.all_since(span[0])
                found += [(one, gap) for one, gap in behind if one in since]
        return Pieces.made(found)

    def passed(self, had: Pieces, *, lanes: Callable[[], Iterable[str]]) -> Unread | None:
        """The records before the interval that nobody has, from where the oldest lane's interval begins: what came
        before the first run was promised to nobody. Their times are told by the span in which they are late.

        :param had: what lanes have taken.
        :param lanes: returns the lanes of intervals that have taken records.
        """
        left = self.times.earlier(self.interval.start_ms) - self.wanted - had
        if not left:
            return None
        begins = min((span[0] for span in map(span_of, lanes()) if span is not None), default=self.interval.start_ms)
        if begins >= self.interval.start_ms:
            return None
        left -= self.times.earlier(begins)
        back = max(self.interval.end_ms - self.interval.start_ms, _LEAST_BACK_MS)
        while left and self.interval.start_ms - back > begins:
            if not left & self.times.earlier(self.interval.start_ms - back):
                break
            back *= 2
        first_ms, last_ms = max(begins, self.interval.start_ms - back), self.interval.start_ms - 1
        return Unread(count=left.count, first_ms=first_ms, last_ms=last_ms, splits=SPLITS) if left else None


def _of_the_future(partition: Partition, record: Record) -> IntervalError:
    return IntervalError(
        f"offset {record.offset} of {named(partition)} has a time that is yet to come, {written_ms(record.time_ms)}: "
        "which records behind it belong to a data interval nobody can tell. Mend that producer's clock; the topic's "
        "message.timestamp.after.max.ms keeps such records out, and message.timestamp.type=LogAppendTime has the "
        "broker set the time. This one is in the way until then, or until it is deleted; a live pipeline reads on."
    )


def survey(
    window: Window,
    *,
    lane: str,
    taken: Taken,
    held: HeldRanges,
    of_live: Pieces,
    range_of: Callable[[HeldRange], Pieces],
) -> IntervalSurvey:
    """Return the records of an interval, and their holders.

    :param lane: the lane that asks.
    :param held: the ranges that the batches of all lanes read.
    :param of_live: the pieces that the live lane has, by its logs.
    :param range_of: returns all records from the start of one of its ranges to the end.
    """
    interval = window.inside
    claimed, by_intervals, own = taken.by_live(), taken.by_intervals(), taken.by_lane(lane)
    had = claimed | of_live | by_intervals
    others = (interval - (own or Pieces())) & had
    holders: set[BatchKey] = set()
    known = Pieces()
    for name in held if others else ():
        theirs = others - by_intervals if name == LIVE else others & (taken.by_lane(name) or Pieces())
        for one in () if name == lane else held[name]:
            found = theirs & range_of(one) if name == LIVE else theirs
            if found:
                holders.add(one.key)
                known |= found
    without = others - known
    lanes = taken.lanes() if without else set[str]()
    return IntervalSurvey(
        unread=bool(window.wanted - had) or bool(window.gone(lambda: had, taken=taken)) or own is not None,
        holders=frozenset(holders),
        splits=SPLITS,
        elsewhere=without.count,
        takers=frozenset(name for name in lanes if without & (taken.by_lane(name) or Pieces())),
        left=(interval & (claimed - by_intervals) - of_live).count,
        # Each look would list what every interval has taken, and a live lane passes nothing.
        passed=window.passed(had, lanes=taken.lanes) if window.interval.whole else None,
        waits=window.waits,
    )
