"""A batch that keeps failing: after so many failed attempts it is set aside, and the pipeline goes on without it.

Its commit entry says so. The batch stays replayable: its sources keep its range, and a clear of its task runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt, AttemptEnd, CommitEntry, RunIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import BatchSetAsideError, EngineError, OutrunError
from airflow_provider_microbatch.execution.liveness import EngineOf, sign_of_life
from airflow_provider_microbatch.execution.plan import PlannedBatch, Planner
from airflow_provider_microbatch.execution.position import render
from airflow_provider_microbatch.sinks import Sink

ENGINE = "set aside"
"""``engine`` in the handle of the epoch under which a batch is set aside: it fences all attempts and runs nothing."""

FOUND_DEAD = "found dead: its lease has run out, and its engine does not say that it runs"


def is_dead(checkpoint: Checkpoint, attempt: Attempt, engine_of: EngineOf) -> bool:
    """Whether an attempt without an end on record is known to be dead. A stage that waits for audits is not."""
    try:
        return sign_of_life(checkpoint, attempt, engine_of, parked=True) is None
    except EngineError:
        return False


def failures(checkpoint: Checkpoint, key: BatchKey, engine_of: EngineOf) -> list[str]:
    """Errors of the batch's attempts that failed or are dead, oldest first. What a replay, a stop or a later attempt
    put an end to is no failure of the batch."""
    found = []
    for attempt in checkpoint.attempts.all(key):
        if not attempt.code or attempt.request is not None:
            continue  # an epoch that only fences, or a replay
        end = checkpoint.attempts.ended(key, attempt.epoch)
        if end is None:
            found += [FOUND_DEAD] if is_dead(checkpoint, attempt, engine_of) else []
        elif end.state == "failed":
            found.append(end.error or "")
    return found


def set_aside(
    *,
    checkpoint: Checkpoint,
    planner: Planner,
    sink: Sink,
    planned: PlannedBatch,
    errors: Sequence[str],
    epoch: int,
    run: RunIdentity | None,
    now_ms: int,
    end_earlier: Callable[[Attempt], None],
) -> BatchSetAsideError:
    """Set the batch aside, and return the alarm to raise.

    The order: take the next epoch, so that no attempt publishes any more; see that none has; have the sources keep the
    range; write the commit entry. Killed in between, the next run does the same again.

    :param errors: of the batch's failed attempts.
    :param epoch: the one right after the newest that was looked at.
    :param end_earlier: puts an end to all attempts before the one it is given.
    :raises OutrunError: if somebody else was faster; nothing is set aside then.
    :raises SourceError: if a source cannot keep the range; nothing is set aside then.
    """
    key, attempts = planned.key, checkpoint.attempts
    fence = Attempt(key=key, epoch=epoch, handle={"engine": ENGINE}, run=run, code={}, started_ms=now_ms)
    if not attempts.take_exactly(fence):
        raise OutrunError(f"batch {key}: attempt {epoch} was opened at the same moment.")
    end_earlier(fence)
    attempts.end(key, epoch, AttemptEnd(state="canceled", error="sets the batch aside", ended_ms=now_ms))
    if sink.contains(key) is not None:
        raise OutrunError(f"batch {key} was published at the same moment.")
    planner.keep_sources(planned)
    entry = CommitEntry(
        # The batch's own: nothing has moved it.
        next_watermark_ms=planned.entry.watermark_ms,
        set_aside=True,
        failure={
            "error": errors[-1],
            "attempts": len(errors),
            "epoch": epoch,
            "starts": dict(planned.starts),
            "ends": dict(planned.entry.ends),
        },
        run=run,
        committed_ms=now_ms,
    )
    if not checkpoint.lane(key.lane).commit_log.add(key.id, entry):
        raise OutrunError(f"batch {key} was committed at the same moment.")
    return aside_error(planned, entry)


def is_aside(checkpoint: Checkpoint, key: BatchKey, commit: CommitEntry | None) -> bool:
    """Whether the batch is set aside still: no replay has published it since. A position that was set by hand reads
    nothing, so its commit entry has no failure."""
    return commit is not None and commit.set_aside and bool(commit.failure) and not checkpoint.replays.epochs.ends(key)


def oldest_aside(checkpoint: Checkpoint, lane: str, *, below: int) -> int | None:
    """The oldest batch of the lane below an id that is set aside still. Reads the commit entries up to it."""
    commits = checkpoint.lane(lane).commit_log
    for number in commits.ids():
        if number >= below:
            return None
        if is_aside(checkpoint, BatchKey(lane, number), commits.get(number)):
            return number
    return None


def aside_error(planned: PlannedBatch, commit: CommitEntry) -> BatchSetAsideError:
    """The alarm, as the commit entry tells it."""
    failure = commit.failure
    return BatchSetAsideError(
        f"batch {planned.key} was set aside after {failure.get('attempts')} failed attempts. Its range is not in the "
        f"table: {render(planned.starts)} to {render(planned.entry.ends)}. The pipeline goes on with the next batch. "
        f"Mend what is wrong, then clear this task: that runs the batch. The last error: {failure.get('error')}",
        batch_id=planned.key.id,
    )
