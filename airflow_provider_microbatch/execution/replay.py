"""Replay: run a committed batch again from its recorded offsets. A clear asks for it, a retry does not."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt, CommitEntry, Relation, RunIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.replays import Replay, Replays
from airflow_provider_microbatch.exceptions import AttemptFencedError, SinkError, SourceError
from airflow_provider_microbatch.execution.came_back import check_none_came_back
from airflow_provider_microbatch.execution.engine import Code
from airflow_provider_microbatch.execution.identity import (
    complete_replace,
    expected,
    is_of_one_attempt,
    is_still_planned,
)
from airflow_provider_microbatch.execution.late_ends import check_on_record
from airflow_provider_microbatch.execution.letters_taken import AS_IT_IS, check_not_taken
from airflow_provider_microbatch.execution.not_elsewhere import check_not_elsewhere
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.execution.other_lives import check_of_this_life
from airflow_provider_microbatch.execution.planned import PlannedBatch
from airflow_provider_microbatch.execution.progress import progress_of
from airflow_provider_microbatch.execution.set_aside import is_aside
from airflow_provider_microbatch.execution.stateful import check_replay
from airflow_provider_microbatch.execution.table_place import check_none_lost, check_recorded
from airflow_provider_microbatch.sinks import Manifest, OpenSink

log = logging.getLogger(__name__)


def request_replay(
    *,
    checkpoint: Checkpoint,
    sources: OpenedSources,
    sink: OpenSink,
    planned: PlannedBatch,
    commit: CommitEntry,
    run: RunIdentity,
    code: Code | None,
    now_ms: int,
) -> int | None:
    """Number of the batch's replay request that the run has to answer, with all before it; None if there is none. A
    request that the run makes is durable on return.

    A clear that no entry on record comes from says that the user wants the batch again, also while a request of an
    earlier clear waits. A request outlives its attempt: a retry of a failed replay finds the request and goes on.

    :raises SourceError: if a source cannot read the range again, with its reason; nothing is written then.
    :raises SinkError: if the batch is in another table than ``sink``, or that lacks an earlier one or has lost its
        record of the batch, or in a table in which no batch can be replaced; nothing is written then.
    :raises CheckpointError: if the batch's dead letters were run again; nothing is written then.
    :raises AttemptFencedError: if the run is a try from before a later clear of its own task.
    """
    key, replays = planned.key, checkpoint.replays
    # Only the attempts whose output was published, or that a replay was asked for: the outcome of a clear's attempt
    # that failed may be another run's.
    attempts = [one for one in checkpoint.attempts.all(key) if one.epoch == commit.epoch or _is_asked_for(replays, one)]
    known = [
        planned.entry.run,
        commit.run,
        *(attempt.run for attempt in attempts),
        *(request.run for request in replays.all(key)),
    ]
    is_new_clear = _is_new_clear(run, [one for one in known if one is not None])
    if is_new_clear:
        check_replay(checkpoint, key, commit.progress, sink=sink)
        check_place_again(checkpoint, sink, key)
        if _run_since_the_backup(checkpoint, sink, planned, commit) is None:
            check_replaceable(checkpoint, sink, planned)
        ask_again(checkpoint=checkpoint, sources=sources, planned=planned, run=run, code=code, now_ms=now_ms)
        log.info("Batch %s was cleared: replaying it with the same offsets and settings", key)
    requests = replays.all(key)
    later = [
        request for request in requests if request.run is not None and run.relation_to(request.run) is Relation.EARLIER
    ]
    if later:
        raise AttemptFencedError(
            f"batch {key}: run {run.run_id!r} of DAG {run.dag_id!r} was cleared again while this try was on its way. "
            f"Replay request {later[-1].epoch} is for the code of the later clear, whose try answers it."
        )
    # A prefix of the requests that wait: an attempt answers a request with all before it, so that none before the run's
    # own newest one is in its way.
    own = max((one.epoch for one in requests if one.run is not None and run.is_of(one.run)), default=0)
    waiting = list(takewhile(lambda one: one.epoch <= own or _may_answer(run, one), replays.pending(key)))
    if not waiting:
        return None
    if not is_new_clear:
        check_not_elsewhere(checkpoint, sink, key)
        check_of_this_life(checkpoint, sink, key)
        check_recorded(checkpoint, sink, key)
    if (published := _run_since_the_backup(checkpoint, sink, planned, commit)) is not None:
        log.info("Batch %s was run after the backup of which the checkpoint is: nothing is published again", key)
        _finish_by(published, checkpoint=checkpoint, sources=sources, planned=planned, attempt=None, now_ms=now_ms)
        return None
    _withdraw_unanswerable(checkpoint, sources, planned, [one for one in waiting if one.run and run.is_of(one.run)])
    log.info("Batch %s: replay request %s waits for its answer", key, waiting[-1].epoch)
    return waiting[-1].epoch


def _run_since_the_backup(
    checkpoint: Checkpoint, sink: OpenSink, planned: PlannedBatch, commit: CommitEntry
) -> Manifest | None:
    """What a clear has published of a batch that is set aside here, since the checkpoint was restored from before that
    clear; None if the batch is not in, or a replay takes the place of what is in. A table that keeps what was replaced
    would have its rows twice, or refuse the replay, and the batch would be set aside for ever."""
    if not sink.definition.keeps_replaced or not is_aside(checkpoint, planned.key, commit):
        return None
    batch = expected(checkpoint, planned.identity)
    found = sink.contains(batch)
    if found is None or not is_of_one_attempt(sink, batch, found):
        return None
    return found if checkpoint.attempts.made(planned.key, found.epoch) is None else None


def _is_asked_for(replays: Replays, attempt: Attempt) -> bool:
    """Whether the attempt was made for a clear, and nothing has refused that since: a retry is then refused as well."""
    return attempt.request is not None and not replays.is_refused(attempt.key, attempt.request)


def check_place_again(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey) -> None:
    """Check that a batch may be made again in the table, before its replay is requested: its attempt would be refused,
    and a request that waits for that attempt would hold retention.

    :raises SinkError: if the batch is in another table than ``sink``, or that lacks an earlier one, or has lost its
        record of the batch, or has rows again that a rewind has taken out.
    :raises CheckpointError: if its dead letters were run again.
    """
    check_not_elsewhere(checkpoint, sink, key)
    check_of_this_life(checkpoint, sink, key)
    check_none_lost(checkpoint, sink, key)
    check_recorded(checkpoint, sink, key)
    check_none_came_back(checkpoint, sink, key.lane)
    check_not_taken(checkpoint, key, sink)


def ask_again(
    *,
    checkpoint: Checkpoint,
    sources: OpenedSources,
    planned: PlannedBatch,
    run: RunIdentity,
    code: Code | None,
    now_ms: int,
) -> None:
    """Request that the batch is replayed. Durable on return.

    :param code: the code that the run has, and wants the batch to be made with; None if the run does not know.

    :raises SourceError: if a source cannot read the range again, with its reason; nothing is written then.
    :raises AttemptFencedError: if a command took the batch out meanwhile; nothing is requested then.
    """
    check_replayable(sources, planned)
    request = checkpoint.replays.request(
        planned.key, run=run, requested_ms=now_ms, code_hash=None if code is None else code.code_hash
    )
    # After the request: a rewind withdraws the requests that it finds. One that came later would wait for ever, and
    # hold retention; the user's clear is for the next batch of this number.
    if not is_still_planned(checkpoint, planned.identity):
        reason = "the batch was rewound while its replay was asked for"
        checkpoint.replays.withdraw(planned.key, request.epoch, reason=reason)
        raise AttemptFencedError(f"batch {planned.key}: {reason}. Nothing was done; a retry makes it as it is then.")


def withdraw_those_of_before(checkpoint: Checkpoint, key: BatchKey) -> None:
    """Withdraw requests for a batch that is planned and not committed: the run of such a request saw the batch
    committed, and slept through a rewind. It may have died before it could withdraw the request itself."""
    pending = checkpoint.replays.pending(key)
    # After the look at the requests: a batch that is committed by now may have been cleared since.
    if pending and checkpoint.lane(key.lane).commit_of(key.id) is None:
        for request in pending:
            checkpoint.replays.withdraw(key, request.epoch, reason="the batch was rewound before")


def _withdraw_unanswerable(
    checkpoint: Checkpoint, sources: OpenedSources, planned: PlannedBatch, own: Sequence[Replay]
) -> None:
    """Look at the sources once more, after the request: ``clean_source`` spares ranges that are asked for, and may have
    looked before the request was there. A request that no run could answer would hold retention for ever.

    :raises SourceError: if a source cannot read the batch's range again; the run's own requests are withdrawn then.
    """
    attempts = checkpoint.attempts
    if any(attempts.ended(planned.key, epoch) is None for epoch in attempts.epochs.all(planned.key)):
        return  # one of them may have read all, and publish
    try:
        check_replayable(sources, planned)
    except SourceError as error:
        for request in own:
            checkpoint.replays.refuse(planned.key, request.epoch, reason=str(error))
        raise


def check_replayable(sources: OpenedSources, planned: PlannedBatch) -> None:
    """Check the sources. :raises SourceError: if one cannot read the batch's range again, with its reason."""
    check_on_record(planned, sources)
    reason = sources.not_replayable(planned.ranges)
    if reason is not None:
        raise SourceError(f"batch {planned.key} cannot be replayed, {reason}")


def check_replaceable(checkpoint: Checkpoint, sink: OpenSink, planned: PlannedBatch, *, way: str = AS_IT_IS) -> None:
    """Check the tables, before a job of Spark makes what none of them would take.

    :param way: a sentence that says how its run goes on without the replay.
    :raises SinkError: if the batch is in one in which none can be replaced.
    """
    for table in sink.tables:
        why = table.definition.not_replaceable()
        if why is not None and table.contains(expected(checkpoint, planned.identity)) is not None:
            raise SinkError(
                f"batch {planned.key} is in, and cannot be replayed: {why}. Nothing was run, and the batch stays as it "
                f"is. {way}"
            )


def answers(attempt: Attempt, request: Replay) -> bool:
    """Whether the attempt was made for the request, or for a later one.

    A try that slept since before the clear may wake up at any time, even with the newest epoch. It runs the code of its
    day: its output must neither replace that of a replay nor pass for one.
    """
    return attempt.request is not None and attempt.request >= request.epoch


def answer_replays(
    checkpoint: Checkpoint,
    key: BatchKey,
    attempt: Attempt | None,
    *,
    epoch: int,
    progress: Mapping[str, Any],
    now_ms: int,
) -> None:
    """Record that the published output answers the batch's requests. Idempotent.

    :param attempt: the attempt with that output; None if it is not on record, as after the restore of a backup.
    :param epoch: the attempt's epoch.
    """
    for request in checkpoint.replays.pending(key):
        if attempt is None or answers(attempt, request):
            checkpoint.replays.complete(key, request.epoch, attempt=epoch, completed_ms=now_ms, progress=progress)


def finish_replay(
    *,
    checkpoint: Checkpoint,
    sources: OpenedSources,
    sink: OpenSink,
    planned: PlannedBatch,
    attempt: Attempt,
    published: Manifest,
    now_ms: int,
) -> None:
    """Do the rest of a replay that was published, and whose task died then. Can be called again.

    :param published: the attempt's manifest in the sink.
    """
    published = complete_replace(checkpoint, sink, planned.identity, published)
    _finish_by(published, checkpoint=checkpoint, sources=sources, planned=planned, attempt=attempt, now_ms=now_ms)


def _finish_by(
    published: Manifest,
    *,
    checkpoint: Checkpoint,
    sources: OpenedSources,
    planned: PlannedBatch,
    attempt: Attempt | None,
    now_ms: int,
) -> None:
    if planned.set_aside:
        # Before the answer is there: no run would release the ranges after that.
        sources.release(planned.ranges)
    progress = progress_of(published, sources.describe(planned.ranges))
    answer_replays(checkpoint, planned.key, attempt, epoch=published.epoch, progress=progress, now_ms=now_ms)


def is_asked_for(checkpoint: Checkpoint, attempt: Attempt, planned: PlannedBatch) -> bool:
    """Whether a replay that waits for its answer allows the attempt to replace the published output."""
    pending = checkpoint.replays.pending(attempt.key) if planned.committed else []
    return any(answers(attempt, request) for request in pending)


def committer(attempt: Attempt | None, run: RunIdentity | None, planned: PlannedBatch) -> RunIdentity | None:
    """The run in whose name ``run`` commits the attempt's output. If ``run`` comes of a later clear than the output,
    that is the run that made the output: in the name of the clear, it would pass for the replay that the user wants."""
    if not _is_of_before_a_clear(attempt, run, planned):
        return run
    return planned.entry.run if attempt is None else attempt.run


def is_cleared(checkpoint: Checkpoint, published: Manifest, run: RunIdentity, planned: PlannedBatch) -> bool:
    """Whether the published output is from before the clear that ``run`` comes of, so that it has to be replayed."""
    return _is_of_before_a_clear(checkpoint.attempts.made(published.key, published.epoch), run, planned)


def _is_of_before_a_clear(attempt: Attempt | None, run: RunIdentity | None, planned: PlannedBatch) -> bool:
    """Whether attempt and plan are from before the clear that ``run`` comes of: a run may have been cleared whose batch
    another run has made. For an attempt that is not on record, as after the restore of a backup, the plan alone
    decides: one replay too many does no harm."""
    made_by = None if attempt is None else attempt.run
    if run is None or (attempt is not None and made_by is None):
        return False
    if made_by is not None and run.relation_to(made_by) is Relation.SAME:
        return False
    by = (made_by, planned.entry.run)
    return any(one is not None and run.relation_to(one) is Relation.LATER for one in by)


def still_wanted(
    checkpoint: Checkpoint, attempt: Attempt, published: Manifest, *, run: RunIdentity | None, planned: PlannedBatch
) -> str | None:
    """Why the batch has to run once more though it is committed, in words; None if the published output is the one that
    was asked for. Another attempt may have published before the one that was made for a clear, which adopts that output
    then.

    :param attempt: the attempt that was made last.
    :param published: the manifest in the sink.
    :param run: the run whose clear the attempt was made for; None if that is not known.
    """
    if any(answers(attempt, request) for request in checkpoint.replays.pending(attempt.key)):
        return (
            f"batch {attempt.key}: attempt {published.epoch} is published and was not made for replay request "
            f"{attempt.request}, which waits for its answer."
        )
    if run is not None and is_cleared(checkpoint, published, run, planned):
        return (
            f"batch {attempt.key}: attempt {published.epoch}, of before the run was cleared, was published first. It "
            "is committed and not what the clear asks for."
        )
    return None


def _may_answer(run: RunIdentity, request: Replay) -> bool:
    """Whether the run may answer the request. A first run that comes late has code from before any clear, and a try
    that is older than a request may have code from before that request's clear. So neither answers another run's
    request: that run makes the batch once more."""
    if request.run is None or run.is_of(request.run):
        return True
    return run.was_cleared and run.was_made_after(request.requested_ms)


def _is_new_clear(run: RunIdentity, known: Sequence[RunIdentity]) -> bool:
    """Whether the run was cleared after everything that is on record of it for the batch."""
    own = [one for one in known if run.is_of(one)]
    seen = max((one.clear_number for one in own), default=run.clear_number)
    if run.clear_number != seen:
        return run.clear_number > seen
    # A clear may leave the number; then only tries of the same task tell it from a retry.
    tries = [one for one in own if one.task_id == run.task_id and one.clear_number == seen]
    return bool(tries) and all(run.relation_to(one) is Relation.LATER for one in tries)
