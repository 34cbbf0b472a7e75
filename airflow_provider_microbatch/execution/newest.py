"""The newest batch of a lane whose output is in a table."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey


def newest_published(checkpoint: Checkpoint, lane: str) -> tuple[BatchKey, int] | None:
    """The newest batch of the lane that was published, with the epoch of its commit; None if there is none.

    It is looked for before every run, so the log is not listed. Batches that were set aside are passed over; what a
    streaming query has committed, or retention removed, ends the way: nothing of this package lies below.

    :raises CorruptEntryError: if an entry cannot be read.
    """
    log = checkpoint.lane(lane).commit_log
    newest = log.latest_id()
    for number in range(-1 if newest is None else newest, -1, -1):
        commit = log.get(number)
        if commit is not None and commit.set_aside:
            continue
        return None if commit is None or commit.epoch is None else (BatchKey(lane, number), commit.epoch)
    return None
