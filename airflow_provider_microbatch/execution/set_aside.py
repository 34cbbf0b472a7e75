"""A batch that keeps failing: after so many failed attempts it is set aside, and the pipeline goes on without it.

Only failures that the batch itself is to blame for count: the runtime reports its transform or its data. Attempts that
died have a count of their own, since a batch that kills its worker leaves no report, and neither does a power failure.
An engine that is down or cannot be asked is an outage, and counts for nothing.

The batch's commit entry says that it was set aside. The batch stays replayable: its sources keep its range, and a clear
of its task runs it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import DEAD, JOB, Attempt, AttemptEnd, CommitEntry, RunIdentity
from airflow_provider_microbatch.checkpoint.fences import FencedBy, fence, is_fence_by
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.checkpoint.verify import Finding
from airflow_provider_microbatch.exceptions import (
    BatchSetAsideError,
    CheckpointError,
    EngineError,
    OutrunError,
    ReadError,
    SinkError,
    SparkKilledError,
    TransformError,
)
from airflow_provider_microbatch.execution.commit_entry import add_commit
from airflow_provider_microbatch.execution.engine import Engine
from airflow_provider_microbatch.execution.identity import expected, latest_in, latest_seen
from airflow_provider_microbatch.execution.intervals import in_words
from airflow_provider_microbatch.execution.liveness import EngineOf, sign_of_life
from airflow_provider_microbatch.execution.newest import SINCE, first_in_a_row
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.execution.planned import PlannedBatch
from airflow_provider_microbatch.execution.position import render
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks import OpenSink

log = logging.getLogger(__name__)

FOUND_DEAD = "found dead: its lease has run out, and its engine does not say that it runs"
FOUND_STOPPED = "found stopped: its task was told to stop, and has left no end of it"

_STEPS = ' (of steps the one that failed with all that comes after it, "Downstream": the last one publishes)'


@dataclass(frozen=True, kw_only=True)
class Failures:
    """Errors of a batch's attempts that speak against the batch, oldest first.

    :param job: errors that the runtime reported of the transform, or of the data.
    :param dead: attempts that were found dead, or whose Spark was killed.
    """

    job: tuple[str, ...]
    dead: tuple[str, ...]

    def due(self, *, after: int, after_dead: int | None) -> Sequence[str]:
        """The errors for which the batch is to be set aside; empty as long as there are too few of either kind."""
        if len(self.job) >= after:
            return self.job
        return self.dead if after_dead is not None and len(self.dead) >= after_dead else ()


def cause_of(error: BaseException) -> str | None:
    """The cause that the end of an attempt with ``error`` records; None for all else, such as an outage."""
    if isinstance(error, (TransformError, ReadError)):
        return JOB
    return DEAD if isinstance(error, SparkKilledError) else None


def is_dead(checkpoint: Checkpoint, attempt: Attempt, engine_of: EngineOf) -> bool:
    """Whether an attempt without an end on record is known to be dead. A stage that waits for audits is not."""
    try:
        return sign_of_life(checkpoint, attempt, engine_of, parked=True) is None
    except EngineError:
        return False


def was_stopped(checkpoint: Checkpoint, attempt: Attempt) -> bool:
    """Whether an attempt without an end on record was told to stop, so that it is none that died: its task could not
    have it cleaned up in time, or Airflow saw that somebody wanted the end."""
    mark = checkpoint.marks.of(attempt)
    return mark is not None and mark.status == "canceled"


def failures(checkpoint: Checkpoint, key: BatchKey, engine_of: EngineOf) -> Failures:
    """Errors of the batch's attempts that speak against it. An attempt of a replay, or one that a stop or a later
    attempt put an end to, is no failure of the batch."""
    found: dict[str | None, list[str]] = {JOB: [], DEAD: []}
    for attempt in checkpoint.attempts.all(key):
        if is_fence_by(attempt, FencedBy.REWOUND):
            found = {JOB: [], DEAD: []}  # another batch of this number began here
        if attempt.is_fence or attempt.request is not None:
            continue  # a replay's failure is not the batch's
        end = checkpoint.attempts.ended(key, attempt.epoch)
        if end is None:
            died = is_dead(checkpoint, attempt, engine_of) and not was_stopped(checkpoint, attempt)
            found[DEAD] += [FOUND_DEAD] if died else []
        elif end.state == "failed":
            error = end.error or ""
            # Before causes were recorded the text alone told which attempt was found dead.
            cause = DEAD if end.cause is None and error.startswith("found dead") else end.cause
            if cause in found:
                found[cause].append(error)
    return Failures(job=tuple(found[JOB]), dead=tuple(found[DEAD]))


def set_aside_if_due(
    *,
    pipeline: Pipeline,
    checkpoint: Checkpoint,
    sources: OpenedSources,
    sink: OpenSink,
    planned: PlannedBatch,
    newest: int,
    run: RunIdentity | None,
    now_ms: int,
    engine: Engine,
    end_earlier: Callable[[Attempt], object],
) -> None:
    """Set the batch aside if its pipeline says so and it has failed often enough; else do nothing.

    :param newest: the highest epoch that was looked at.
    :param end_earlier: puts an end to all attempts before the one it is given.
    :raises BatchSetAsideError: if the batch is set aside now.
    :raises OutrunError: if another attempt was faster.
    :raises SourceError: if a source cannot keep the range.
    """
    if pipeline.on_failure != "set_aside" or planned.committed:
        return
    found = failures(checkpoint, planned.key, lambda name: engine if name == engine.name else None)
    errors = found.due(after=pipeline.set_aside_after, after_dead=pipeline.set_aside_after_dead)
    if not errors:
        return
    if planned.entry.unresolved:
        # The next batch would begin where this one does, and a clear of this one would read its rows again.
        log.warning(
            "Batch %s failed %s times and is not set aside: nobody knows where it ends before an attempt has read it. "
            "Mend what fails; the next attempt begins where this one did",
            planned.key,
            len(errors),
        )
        return
    part = latest_in(sink, expected(checkpoint, planned.identity)) if len(sink.tables) > 1 else None
    if part is not None:
        log.warning(
            "Batch %s failed %s times and is not set aside: attempt %s has published it to a part of %s, and died",
            planned.key, len(errors), part.epoch, sink.location(),
        )  # fmt: skip
        return
    alarm = set_aside(
        checkpoint=checkpoint,
        sources=sources,
        sink=sink,
        planned=planned,
        errors=errors,
        epoch=newest + 1,
        run=run,
        now_ms=now_ms,
        end_earlier=end_earlier,
    )
    log.error("%s", alarm)
    raise alarm


def set_aside(
    *,
    checkpoint: Checkpoint,
    sources: OpenedSources,
    sink: OpenSink,
    planned: PlannedBatch,
    errors: Sequence[str],
    epoch: int,
    run: RunIdentity | None,
    now_ms: int,
    end_earlier: Callable[[Attempt], object],
) -> BatchSetAsideError:
    """Set the batch aside, and return the alarm to raise.

    The order: take the next epoch, so that no attempt publishes any more; check that none has; have the sources keep
    the range; write the commit entry. If the process is killed in between, the next run does the same again.

    :param errors: of the batch's failed attempts.
    :param epoch: the epoch right after the newest that was looked at.
    :param end_earlier: puts an end to all attempts before the one it is given.
    :raises OutrunError: if another process was faster; nothing is set aside then.
    :raises SourceError: if a source cannot keep the range; nothing is set aside then.
    :raises SinkError: if readers find a part of the batch; nothing is set aside then.
    """
    key, attempts = planned.key, checkpoint.attempts
    fencing = fence(key, epoch, by=FencedBy.SET_ASIDE, started_ms=now_ms, run=run)
    if not attempts.take_exactly(fencing):
        raise OutrunError(f"batch {key}: attempt {epoch} was opened at the same moment.")
    end_earlier(fencing)
    attempts.end(key, epoch, AttemptEnd(state="canceled", error="sets the batch aside", ended_ms=now_ms))
    batch = expected(checkpoint, planned.identity)
    if (sink.contains(batch) or latest_in(sink, batch)) is not None:
        raise OutrunError(f"batch {key} was published at the same moment.")
    if latest_seen(sink, batch) is not None:
        raise SinkError(
            f"batch {key} is not set aside: readers of {sink.location()} find a part of its rows, which goes with the "
            "stage of the attempt that has died over it, and that could not be dropped. The next run tries again."
        )
    sources.keep(planned.ranges)
    entry = CommitEntry(
        # The batch's own watermark: nothing has moved it.
        next_watermark_ms=planned.entry.watermark_ms,
        complete=key.lane == LIVE and sources.are_finished(planned.ranges.ends),
        set_aside=True,
        failure={
            "error": errors[-1],
            "attempts": len(errors),
            "epoch": epoch,
            SINCE: first_in_a_row(checkpoint.lane(key.lane).commit_log, key.id),
            "starts": dict(planned.starts),
            "ends": dict(planned.entry.ends),
        },
        run=run,
        committed_ms=now_ms,
        plan=planned.identity.digest,
    )
    if add_commit(checkpoint=checkpoint, sources=sources, planned=planned, entry=entry) != entry:
        raise OutrunError(f"batch {key} was committed at the same moment.")
    return aside_error(planned, entry)


def is_aside(checkpoint: Checkpoint, key: BatchKey, commit: CommitEntry | None) -> bool:
    """Whether the batch is set aside still: no replay has published it since. The commit entry of a position that was
    set by hand has no failure, as such a position reads nothing, and does not count."""
    return commit is not None and commit.set_aside and bool(commit.failure) and not checkpoint.replays.is_answered(key)


def all_aside(checkpoint: Checkpoint, lane: str) -> list[int]:
    """The batches of the lane that are set aside still, ascending. Reads all commit entries."""
    commits = checkpoint.lane(lane).commit_log
    return [number for number in commits.ids() if is_aside(checkpoint, BatchKey(lane, number), commits.get(number))]


def oldest_aside(checkpoint: Checkpoint, lane: str, *, below: int) -> int | None:
    """The oldest batch of the lane below an id that is set aside still. Reads the commit entries up to it."""
    commits = checkpoint.lane(lane).commit_log
    for number in commits.ids():
        if number >= below:
            return None
        if is_aside(checkpoint, BatchKey(lane, number), commits.get(number)):
            return number
    return None


def find_aside(checkpoint: Checkpoint) -> list[Finding]:
    """A finding for each batch that is set aside still: once the runs that were at it are gone, nothing else tells."""
    found = []
    for name in checkpoint.lanes():
        with suppress(CheckpointError):  # torn; that is another finding
            found += [_finding(checkpoint, BatchKey(name, number)) for number in all_aside(checkpoint, name)]
    return found


def _finding(checkpoint: Checkpoint, key: BatchKey) -> Finding:
    lane = checkpoint.lane(key.lane)
    entries = (lane.offset_log.get(key.id), lane.commit_log.get(key.id))
    runs = [entry.run for entry in entries if entry is not None and entry.run is not None]
    names = dict.fromkeys(f"run {run.run_id!r} of DAG {run.dag_id!r}" for run in runs)
    rewind = command(lane, f"rewind --to {key.id - 1} --drop-output")
    interval = in_words(key.lane)
    then = "runs it and all after it" if interval is None else f"and a backfill of exactly {interval} run it"
    again = f" If its run is gone, {rewind} {then}." if lane.can_be_rewound_to(key.id - 1) else ""
    return Finding(
        kind="set aside",
        where=lane.commit_log.where(key.id),
        message=f"batch {key} failed too often and was set aside: what it was to read is in no table. "
        f"{command(lane, f'show {key.id}')} has its errors.",
        repair=f"Mend what is wrong, then clear the batch's task of {' or '.join(names) or 'its run'}{_STEPS}.{again}",
    )


def aside_error(planned: PlannedBatch, commit: CommitEntry) -> BatchSetAsideError:
    """The alarm, as the commit entry tells it."""
    failure, interval = commit.failure, in_words(planned.key.lane)
    rewind = "`microbatch rewind` does" if interval is None else f"`microbatch rewind` and a backfill of {interval} do"
    return BatchSetAsideError(
        f"batch {planned.key} was set aside after {failure.get('attempts')} failed attempts. Its range is not in the "
        f"table: {render(planned.starts)} to {render(planned.entry.ends)}. The pipeline goes on with the next batch. "
        f"Mend what is wrong, then clear this task{_STEPS}: that runs the batch ({rewind} if its run is gone). "
        f"The last error: {failure.get('error')}",
        batch=str(planned.key),
    )
