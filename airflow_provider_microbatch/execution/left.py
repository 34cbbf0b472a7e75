"""Batches that are not committed and that no process is at.

Nothing is planned behind such a batch, and no other lane reads the data that the batch of a data interval took.
"""

from __future__ import annotations

from shlex import quote

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.key import LETTERS, LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.checkpoint.verify import Finding
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.execution.intervals import in_the_way, in_words
from airflow_provider_microbatch.execution.letters_taken import replay_command
from airflow_provider_microbatch.execution.liveness import sign_of_life

STANDING_SECONDS = 3600.0
"""Seconds that the live lane's batch may wait between two tries before it counts as standing still: longer than
Airflow's usual delays between retries, and than the pause of a schedule."""


def find_standing(checkpoint: Checkpoint, *, seconds: float = STANDING_SECONDS) -> list[Finding]:
    """A finding if the live lane's batch is planned, not committed, and no process has been at it for ``seconds``. The
    logs are whole then and ``repair`` has nothing to do, but the table stands still: ``check`` has to tell the user."""
    try:
        key = left_in(checkpoint, LIVE)
        if key is None:
            return []
        attempts, log = checkpoint.attempts, checkpoint.lane(LIVE).offset_log
        entry = log.get(key.id)
        if entry is None or entry.pipeline is None:
            return []  # a streaming query's: whether that runs is not known here
        idle = min(log.age_seconds(key.id), attempts.epochs.age_seconds(key))
        newest = attempts.latest(key)
        why = "No attempt was begun." if newest is None else _how_it_ended(checkpoint, newest)
    except CheckpointError:
        return []  # torn; that is another finding
    if idle < seconds:
        return []
    return [
        Finding(
            kind="standing",
            where=log.where(key.id),
            message=f"batch {key} is planned, not committed, and nobody has been at it for {idle / 60:,.0f} minutes. "
            f"No batch is planned behind it. {why}",
            repair="The pipeline's next run takes it up: see that its DAG is not paused, or clear the task that "
            f"failed. `microbatch show {quote(checkpoint.location)} {key.id}` has all attempts with their errors.",
        )
    ]


def find_left(checkpoint: Checkpoint, *, parked: bool = True) -> list[Finding]:
    """A finding for each such batch of a data interval, with the run that has to be cleared. The live lane's next run
    takes up the batch that the run before left, whichever run that is; an interval has one run; and
    of dead letters with the command.

    :param parked: whether a batch whose stage waits for audits is in hand.
    """
    found = []
    for lane in checkpoint.lanes():
        log = checkpoint.lane(lane).offset_log
        try:
            key = left_in(checkpoint, lane, parked=parked) if lane != LIVE else None
            entry = None if key is None else log.get(key.id)
        except CheckpointError:
            continue  # torn; that is another finding
        if key is None:
            continue
        if lane == LETTERS:
            found.append(_left_letters(checkpoint, key))
            continue
        run = entry.run if entry is not None else None
        whose = run.in_words if run else "its interval's task"
        found.append(
            Finding(
                kind="left",
                where=log.where(key.id),
                message=f"batch {key} is planned, not committed, and nobody is at it. No other lane reads its data.",
                repair=f"Clear {whose}, or backfill exactly the data interval {in_words(lane)}. "
                f"{in_the_way(lane)}".rstrip(),
            )
        )
    return found


def _left_letters(checkpoint: Checkpoint, key: BatchKey) -> Finding:
    """No task of Airflow's has run such a batch, and none can be cleared."""
    lane = checkpoint.lane(LETTERS)
    return Finding(
        kind="left",
        where=lane.offset_log.where(key.id),
        message=f"batch {key} is planned, not committed, and nobody is at it. No other batch runs its dead letters.",
        repair=f"{replay_command(checkpoint)} goes on with it; "
        f"{command(lane, f'rewind --to {key.id - 1} --drop-output')} gives its plan up.",
    )


def left_in(checkpoint: Checkpoint, lane: str, *, parked: bool = True) -> BatchKey | None:
    """The lane's newest batch if it is planned, not committed, no process is at it and no stage waits for audits; with
    ``parked=False`` whether one waits or not."""
    logs = checkpoint.lane(lane)
    number = logs.offset_log.latest_id()
    if number is None or logs.commit_of(number) is not None:
        return None
    key = BatchKey(lane, number)
    attempt = checkpoint.attempts.latest(key)
    lives = attempt is not None and sign_of_life(checkpoint, attempt, parked=parked) is not None
    return None if lives else key


def _how_it_ended(checkpoint: Checkpoint, attempt: Attempt) -> str:
    end = checkpoint.attempts.ended(attempt.key, attempt.epoch)
    if end is None:
        return f"Attempt {attempt.epoch} has left no end."
    error = f": {end.error.strip().splitlines()[0]}" if end.error and end.error.strip() else "."
    return f"Attempt {attempt.epoch} ended as {end.state}{error}"
