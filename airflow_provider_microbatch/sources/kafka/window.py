"""The records of an interval: those that no batch has, and the batches that have the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from airflow_provider_microbatch.checkpoint.entries import SKEW_MS
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import IntervalError
from airflow_provider_microbatch.kafka.cluster import Cluster, Partition, Position, Record, named
from airflow_provider_microbatch.sources.intervals import HeldRange, HeldRanges, IntervalSurvey, written_ms
from airflow_provider_microbatch.sources.kafka.pieces import Pieces
from airflow_provider_microbatch.sources.kafka.taken import Taken

SPLITS = "offsets"
"""The name of the source's smallest units."""


def of_spans(
    cluster: Callable[[], Cluster],
    spans: Iterable[tuple[int, int]],
    *,
    earliest: Position,
    latest: Position,
    now_ms: int,
) -> Pieces:
    """Return the records in spans of time, by their timestamps: from the first record at or after a span's start up to
    the first record at or after its end. Adjacent spans therefore contain each record once, even a record whose time is
    older than that of a record before it.

    :param spans: start and end (exclusive), milliseconds since the epoch, UTC.
    :param now_ms: the time, milliseconds since the epoch, UTC.
    :raises IntervalError: if a span ends at a record with a future time: the records behind it would be in no earlier
        span.
    """
    found = Pieces()
    at: dict[int, dict[Partition, int]] = {}
    for span in spans:
        for ms in span:
            if ms not in at:
                since = cluster().since(latest, ms)
                for one, record in since.items():
                    if record is not None and record.time_ms > now_ms + SKEW_MS:
                        raise _of_the_future(one, record)
                at[ms] = {one: latest[one] if it is None else min(latest[one], it.offset) for one, it in since.items()}
        start, end = (at[ms] for ms in span)
        found |= Pieces.between({one: max(earliest[one], offset) for one, offset in start.items()}, end)
    return found


def _of_the_future(partition: Partition, record: Record) -> IntervalError:
    return IntervalError(
        f"offset {record.offset} of {named(partition)} has a time that is yet to come, {written_ms(record.time_ms)}: "
        "which records behind it belong to a data interval nobody can tell. Mend that producer's clock; the topic's "
        "message.timestamp.after.max.ms keeps such records out, and message.timestamp.type=LogAppendTime has the "
        "broker set the time. This one is in the way until then, or until it is deleted; a live pipeline reads on."
    )


def survey(
    interval: Pieces,
    wanted: Pieces,
    *,
    lane: str,
    taken: Taken,
    held: HeldRanges,
    of_live: Pieces,
    range_of: Callable[[HeldRange], Pieces],
) -> IntervalSurvey:
    """Return the records of an interval, and their holders.

    :param interval: the records in the interval.
    :param wanted: the same records, and those that are late for the interval.
    :param lane: the lane that asks.
    :param held: the ranges that the batches of all lanes read.
    :param of_live: the pieces that the live lane has, by its logs.
    :param range_of: returns all records from the start of one of its ranges to the end.
    """
    claimed, by_intervals, own = taken.by_live(), taken.by_intervals(), taken.by_lane(lane)
    others = (interval - (own or Pieces())) & (claimed | of_live | by_intervals)
    holders: set[BatchKey] = set()
    known = Pieces()
    for name in held if others else ():
        has = others - by_intervals if name == LIVE else others & (taken.by_lane(name) or Pieces())
        for one in () if name == lane else held[name]:
            found = has & range_of(one) if name == LIVE else has
            if found:
                holders.add(one.key)
                known |= found
    without = others - known
    lanes = taken.lanes() if without else set[str]()
    return IntervalSurvey(
        unread=bool(wanted - by_intervals - claimed - of_live) or own is not None,
        holders=frozenset(holders),
        splits=SPLITS,
        elsewhere=without.count,
        takers=frozenset(name for name in lanes if without & (taken.by_lane(name) or Pieces())),
        left=(interval & (claimed - by_intervals) - of_live).count,
    )
