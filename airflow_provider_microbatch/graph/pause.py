"""A pipeline whose batch fails is left alone for a while, later and later, so that it holds up nobody else's."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey

LONGEST_SECONDS = 3600.0
"""The longest pause: whoever has mended what was wrong need not clear anything to be heard within the hour."""


@dataclass(frozen=True, kw_only=True)
class Pause:
    """:param key: the batch that failed.
    :param failures: attempts of it that failed since one did something else.
    :param seconds: how long the pause still lasts.
    """

    key: BatchKey
    failures: int
    seconds: float

    def __str__(self) -> str:
        times = "once" if self.failures == 1 else f"{self.failures} times"
        return f"batch {self.key} has failed {times}, and is tried again in {self.seconds:.0f} s"


def pause_of(checkpoint: Checkpoint, *, first_seconds: float) -> Pause | None:
    """The pause that the live lane's batch has; None if it has none. Writes nothing, and reads three folders at most
    where nothing has failed.

    :param first_seconds: after the first failure; twice as long after each further one.
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
        # Who is killed writes no end: the next attempt will find it dead.
        is_dead = end is None and epoch == epochs[-1] and checkpoint.leases.remaining_seconds(key, epoch) <= 0
        if not is_dead and (end is None or end.state != "failed"):
            break
        failures += 1
    if failures == 0:
        return None
    pause = min(first_seconds * 2.0 ** min(failures - 1, 30), LONGEST_SECONDS)
    left = pause - attempts.epochs.age_seconds(key)
    # An attempt of the future, by a clock that was put back or by who writes there, would have it stand still so long.
    return Pause(key=key, failures=failures, seconds=left) if 0 < left <= 2 * pause else None
