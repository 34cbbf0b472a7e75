"""Pauses of a pipeline whose batch failed, longer after each failure, so that the pipeline does not hold up others."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey

LONGEST_SECONDS = 3600.0
"""The longest pause, in seconds: a user who has mended the fault need not clear a task to see a try within the hour."""


@dataclass(frozen=True, kw_only=True)
class Pause:
    """A pause of a pipeline.

    :param key: the batch that failed.
    :param failures: number of the batch's newest attempts that failed one after the other.
    :param seconds: how long the pause still lasts.
    """

    key: BatchKey
    failures: int
    seconds: float

    def __str__(self) -> str:
        times = "once" if self.failures == 1 else f"{self.failures} times"
        return f"batch {self.key} has failed {times}, and is tried again in {self.seconds:.0f} s"


def pause_of(checkpoint: Checkpoint, *, first_seconds: float) -> Pause | None:
    """The pause of the live lane's newest batch; None if there is no pause. Writes nothing, and reads three folders at
    most where nothing has failed.

    :param first_seconds: length of the pause after the first failure, in seconds; twice as long after each further one,
        up to ``LONGEST_SECONDS``.
    """
    lane = checkpoint.lane(LIVE)
    number = lane.offset_log.latest_id()
    if number is None or lane.commit_of(number) is not None:
        return None
    key, attempts = BatchKey(LIVE, number), checkpoint.attempts
    failures = 0
    epochs = attempts.epochs.all(key)
    for epoch in reversed(epochs):
        end = attempts.ended(key, epoch)
        # A killed attempt has no end on record: the next attempt will find it dead.
        is_dead = end is None and epoch == epochs[-1] and checkpoint.leases.remaining_seconds(key, epoch) <= 0
        if not is_dead and (end is None or end.state != "failed"):
            break
        failures += 1
    if failures == 0:
        return None
    pause = min(first_seconds * 2.0 ** min(failures - 1, 30), LONGEST_SECONDS)
    left = pause - attempts.epochs.age_seconds(key)
    # An attempt from the future (a clock was put back, or a user wrote it) would have the pipeline stand still so long.
    return Pause(key=key, failures=failures, seconds=left) if 0 < left <= 2 * pause else None
