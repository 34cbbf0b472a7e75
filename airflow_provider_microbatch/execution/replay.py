"""Replay: run a committed batch again from its recorded offsets. A clear asks for it, a retry does not."""

from __future__ import annotations

import logging
from itertools import takewhile

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt, CommitEntry, RunIdentity
from airflow_provider_microbatch.checkpoint.replays import Replay
from airflow_provider_microbatch.exceptions import AttemptFencedError
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
) -> int | None:
    """Which replay request of the batch the run has to answer, with all before it; None if there is none. A request
    that the run makes is durable on return.

    Only a clear raises a run's clear number, so a higher one than any on record says that the user wants the batch
    again, also while a request of an earlier clear waits. A request outlives its attempt: a retry of a failed replay
    finds it and goes on.

    :raises SourceError: if a source cannot read the range again, with its reason; nothing is written then.
    :raises AttemptFencedError: if this is a try of before a later clear of its own task.
    """
    key, replays = planned.key, checkpoint.replays
    known = [planned.entry.run, commit.run, *(request.run for request in replays.all(key))]
    seen = max((one.clear_number for one in known if one is not None and one.same_work(run)), default=0)
    if run.clear_number > seen:
        planner.check_replayable(planned)
        replays.request(key, run=run, requested_ms=now_ms)
        log.info("Batch %s was cleared: replaying it with the same offsets and settings", key)
    requests = replays.all(key)
    later = [request for request in requests if request.run is not None and _is_later_clear(request.run, run)]
    if later:
        raise AttemptFencedError(
            f"batch {key}: run {run.run_id!r} of DAG {run.dag_id!r} was cleared again while this try was on its way. "
            f"Replay request {later[-1].epoch} is for the code of the later clear, whose try answers it."
        )
    # A prefix of those that wait: who answers a request answers all before it, so that none before the run's own newest
    # one is in its way.
    own = max((one.epoch for one in requests if one.run is not None and one.run.same_work(run)), default=0)
    waiting = list(takewhile(lambda one: one.epoch <= own or _may_answer(run, one), replays.pending(key)))
    if not waiting:
        return None
    log.info("Batch %s: replay request %s waits for its answer", key, waiting[-1].epoch)
    return waiting[-1].epoch


def answers(attempt: Attempt, request: Replay) -> bool:
    """Whether the attempt was made for the request, or for a later one.

    A try that slept since before the clear may wake up at any time, with the newest epoch even. It runs the code of its
    day: it must neither replace the output of a replay nor pass for one.
    """
    return attempt.request is not None and attempt.request >= request.epoch


def unanswered(checkpoint: Checkpoint, attempt: Attempt) -> bool:
    """Whether a request that the attempt was made for still waits: then some other attempt's output was adopted."""
    return any(answers(attempt, request) for request in checkpoint.replays.pending(attempt.key))


def _may_answer(run: RunIdentity, request: Replay) -> bool:
    """A first run that comes late has code of before any clear, so it answers no other run's request."""
    return request.run is None or request.run.same_work(run) or run.clear_number > 0


def _is_later_clear(other: RunIdentity, run: RunIdentity) -> bool:
    return other.same_work(run) and other.clear_number > run.clear_number
