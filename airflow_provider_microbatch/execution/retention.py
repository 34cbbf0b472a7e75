"""Retention: the logs keep the newest batches, and nothing of an attempt that is unfinished goes."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey


def apply_retention(
    checkpoint: Checkpoint, *, kept: int | None, lane: str = "live", dry_run: bool = False
) -> list[str]:
    """Remove what is older than the newest ``kept`` committed batches of the lane.

    :param kept: how many; None keeps all.
    :return: what was removed, or would be, in words.
    """
    logs = checkpoint.lane(lane)
    newest = logs.commit_log.latest_id()
    if kept is None or newest is None or newest < kept:
        return []
    before = min([newest - kept + 1, *(key.id for key, _ in checkpoint.leases.unfinished(lane))])
    old = [number for number in logs.offset_log.ids() if number < before]
    stale = [number for number in checkpoint.attempts.epochs.ids(lane) if number < before]
    if not old and not stale:
        return []
    if not dry_run:
        logs.offset_log.purge(before)
        logs.commit_log.purge(before)
        key = BatchKey(lane, before)
        checkpoint.replays.purge(key)
        checkpoint.deliveries.purge(key)
        checkpoint.attempts.purge(key)
    return [f"log entries of {len(set(old) | set(stale))} batches before {lane}/{before}"]
