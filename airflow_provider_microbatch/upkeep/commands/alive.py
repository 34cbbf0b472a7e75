"""Attempts that are alive: while there is one, no command begins."""

from __future__ import annotations

import math

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.execution.liveness import EngineOf, sign_of_life


def alive(checkpoint: Checkpoint, engine_of: EngineOf, *, parked: bool = True) -> list[str]:
    """All attempts that are alive, in words: their lease runs, or their engine reports that they run.

    :param parked: count a stage that waits for its audits.
    :raises EngineError: if an engine cannot be asked.
    """
    suspects = set(checkpoint.leases.unfinished())
    for name in checkpoint.lanes():
        lane = checkpoint.lane(name)
        for number in {lane.offset_log.latest_id(), lane.commit_log.latest_id()} - {None}:
            assert number is not None
            key = BatchKey(name, number)
            suspects.update({(key, epoch) for epoch in [checkpoint.attempts.latest_epoch(key)] if epoch})
    found = []
    for key, epoch in sorted(suspects):
        sign = _sign(checkpoint, key, epoch, engine_of, parked=parked)
        if sign is not None:
            found.append(f"{key} attempt {epoch} ({sign})")
    return found


def _sign(checkpoint: Checkpoint, key: BatchKey, epoch: int, engine_of: EngineOf, *, parked: bool) -> str | None:
    try:
        attempt = checkpoint.attempts.get(key, epoch)
        if attempt is not None:
            # However long the attempt has been an orphan: a command fences it, and stops nothing.
            return sign_of_life(checkpoint, attempt, engine_of, parked=parked, orphan_seconds=math.inf)
        seconds = checkpoint.leases.remaining_seconds(key, epoch, parked=parked)
    except CheckpointError:
        return None  # torn: `repair` mends unreadable entries, and the holder could not read its entry either
    return f"it is being opened, its lease runs for another {seconds:.0f} s" if seconds > 0 else None
