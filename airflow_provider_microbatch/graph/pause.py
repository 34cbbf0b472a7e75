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
    :param or_more: whether older attempts were not looked at, since no pause is longer.
    :param seconds: how long the pause still lasts.
    """

    key: BatchKey
    failures: int
    or_more: bool = False
    seconds: float

    def __str__(self) -> str:
        times = "once" if self.failures == 1 else f"{self.failures} times{' or more' if self.or_more else ''}"
        return f"batch {self.key} has failed {times}, and is tried again in {self.seconds:.0f} s"


def pause_of(checkpoint: Checkpoint, *, first_seconds: float) -> Pause | None:
    """The pause of the live lane's newest batch; None if there is no pause. Writes nothing, and reads three folders at
    most where nothing has failed, and no more ends of attempts than make the longest pause.

    :param first_seconds: length of the pause after the first failure, in seconds; twice as long after each further one,
        up to ``LONGEST_SECONDS``.
    """
    lane = checkpoint.lane(LIVE)
    number = lane.offset_log.latest_id()
    if number is None or first_seconds <= 0 or lane.commit_of(number) is not None:
        return None
    key, attempts = BatchKey(LIVE, number), checkpoint.attempts
    failures, pause, or_more = 0, 0.0, False
    epochs = attempts.epochs.all(key)
    for epoch in reversed(epochs):
        if or_more := pause >= LONGEST_SECONDS:
            break  # each look would read the ends of all attempts there ever were
        end = attempts.ended(key, epoch)
        # A killed attempt has no end on record: the next attempt will find it dead.
        is_dead = end is None and epoch == epochs[-1] and checkpoint.leases.remaining_seconds(key, epoch) <= 0
        if not is_dead and (end is None or end.state != "failed"):
            break
        failures += 1
        pause = min(2 * pause or first_seconds, LONGEST_SECONDS)
    if failures == 0:
        return None
    left = pause - attempts.epochs.age_seconds(key)
    # An attempt from the future (a clock was put back, or a user wrote it) would have the pipeline stand still so long.
    is_one = 0 < left <= 2 * pause
    return Pause(key=key, failures=failures, or_more=or_more, seconds=left) if is_one else None
