"""Replay: run a committed batch again from its recorded offsets. A clear asks for it, a retry does not."""

from __future__ import annotations

import logging

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt, CommitEntry, RunIdentity
from airflow_provider_microbatch.checkpoint.replays import Replay
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.execution.plan import PlannedBatch, Planner

log = logging.getLogger(__name__)


def request_replay(
    *,
    checkpoint: Checkpoint,
    planner: Planner,
    planned: PlannedBatch,
    commit: CommitEntry,
    run: RunIdentity,
    now_ms: int,
) -> bool:
    """Whether the run has to replay the batch it committed; if so the request is durable on return.

    Only a clear raises a run's clear number, so a higher one than the commit's says that the user wants the batch
    again. A request outlives its attempt: a retry of a failed replay finds it and goes on.

    :raises SourceError: if a source cannot read the range again, with its reason; nothing is written then.
    """
    key, replays = planned.key, checkpoint.replays
    pending = {replay.epoch for replay in replays.pending(key)}
    if pending:
        log.info("Batch %s: continuing a replay that was asked for and not finished", key)
        return True
    known = [planned.entry.run, commit.run, *(request.run for request in replays.all(key))]
    seen = [identity.clear_number for identity in known if identity is not None and identity.same_work(run)]
    if run.clear_number <= max(seen, default=0):
        return False
    for name, reason in planner.not_replayable(planned):
        raise SourceError(f"batch {key} cannot be replayed, source {name!r} cannot be read again: {reason}")
    replays.request(key, run=run, requested_ms=now_ms)
    log.info("Batch %s was cleared: replaying it with the same offsets and settings", key)
    return True


def answers(attempt: Attempt, request: Replay) -> bool:
    """Whether the attempt was made for the request, or for a later one.

    A try that slept since before the clear may wake up at any time, with the newest epoch even. It runs the code of its
    day: it must neither replace the output of a replay nor pass for one.
    """
    asked, ran = request.run, attempt.run
    if asked is None or ran is None:
        return True
    return ran.clear_number >= asked.clear_number if asked.same_work(ran) else ran.clear_number > 0
