"""Ranges of a source that attempts read now, or have the right to read: no data of them may be taken away."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.execution.position import starts_of
from airflow_provider_microbatch.execution.status import is_committed
from airflow_provider_microbatch.sources.intervals import HeldRange


def being_read(checkpoint: Checkpoint, source: str) -> list[HeldRange]:
    """Ranges of batches that an attempt without an end is at, or that were asked for again and wait for one.

    Alive or not: the Spark of an attempt that was found dead may go on. An attempt whose output is committed has read
    its range, also if it died before its end was on record.
    """
    keys = {key for key, epoch in checkpoint.leases.unfinished() if _reads(checkpoint, key, epoch)}
    replays = checkpoint.replays.epochs
    asked = (BatchKey(lane, number) for lane in replays.lanes() for number in replays.ids(lane))
    keys.update(key for key in asked if replays.open(key))
    found = []
    for key in sorted(keys):
        lane = checkpoint.lane(key.lane)
        entry = lane.offset_log.get(key.id)
        if entry is not None and source in entry.ends:
            start = starts_of(lane, key.id, entry).get(source)
            found.append(HeldRange(key=key, start=start, end=entry.ends[source]))
    return found


def _reads(checkpoint: Checkpoint, key: BatchKey, epoch: int) -> bool:
    attempt = checkpoint.attempts.get(key, epoch)
    if attempt is None:
        return checkpoint.leases.remaining_seconds(key, epoch) > 0
    return checkpoint.attempts.ended(key, epoch) is None and not is_committed(checkpoint, attempt)
