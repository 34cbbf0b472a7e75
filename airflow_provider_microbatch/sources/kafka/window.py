"""The records of an interval: which no batch has, and which batches have the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from airflow_provider_microbatch.checkpoint.entries import SKEW_MS
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import IntervalError
from airflow_provider_microbatch.sources.intervals import HeldRange, HeldRanges, IntervalSurvey, written_ms
from airflow_provider_microbatch.sources.kafka.cluster import Cluster, Record
from airflow_provider_microbatch.sources.kafka.offsets import Partition, Position, named
from airflow_provider_microbatch.sources.kafka.pieces import Pieces
from airflow_provider_microbatch.sources.kafka.taken import Taken

SPLITS = "offsets"
"""What the source's smallest units are."""


def of_spans(
    cluster: Callable[[], Cluster],
    spans: Iterable[tuple[int, int]],
    *,
    earliest: Position,
    latest: Position,
    now_ms: int,
) -> Pieces:
    """What lies in spans of time, by the records' timestamps: from the first record of a span's start or later up to
    the first of its end or later. Spans that follow each other so have each record once, also one whose time is
    older than that of a record before it.

    :param spans: start and end (not part of it), milliseconds since the epoch, UTC.
    :param now_ms: the time, likewise.
    :raises IntervalError: if a span ends at a record of the future: what lies behind it would be in no span before.
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
    """What there is of an interval, and who holds it.

    :param interval: what lies in it.
    :param wanted: the same, and what is late for it.
    :param lane: the one that asks.
    :param held: what the batches of all lanes read.
    :param of_live: what the live lane has, by its logs.
    :param range_of: all from the start of one of its ranges to the end.
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
    return IntervalSurvey(
        unread=bool(wanted - by_intervals - claimed - of_live) or own is not None,
        holders=frozenset(holders),
        splits=SPLITS,
        elsewhere=(others - known).count,
        left=(interval & (claimed - by_intervals) - of_live).count,
    )
