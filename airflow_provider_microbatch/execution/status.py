"""The end of an attempt: on record first, then told to the pipeline's hooks, then its lease is forgotten."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt, AttemptEnd
from airflow_provider_microbatch.exceptions import BrokenLogError, MicroBatchError
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.staging.hooks import (
    CANCELED,
    FAILED,
    FINISHED,
    JobContext,
    JobStatusHook,
    tell_created,
    tell_end,
)

log = logging.getLogger(__name__)

_STATUS = {"succeeded": FINISHED, "canceled": CANCELED, "failed": FAILED, "superseded": FAILED}


def definition_of(checkpoint: Checkpoint, attempt: Attempt) -> Mapping[str, Any] | None:
    """Arguments of the pipeline that the attempt ran, None for an attempt of an older version of this package.

    :raises BrokenLogError: if the attempt names a definition that is not there.
    """
    if attempt.definition is None:
        return None
    found = checkpoint.definitions.get(attempt.definition)
    if found is None:
        raise BrokenLogError(
            f"batch {attempt.key} attempt {attempt.epoch} ran pipeline definition {attempt.definition}, which is not "
            f"in {checkpoint.location}. Restore it from a backup."
        )
    arguments: Mapping[str, Any] = found["arguments"]
    return arguments


def hooks_of(checkpoint: Checkpoint, attempt: Attempt) -> list[JobStatusHook]:
    """The hooks of the pipeline as the attempt ran it.

    :raises DefinitionError: if this process cannot import one.
    """
    arguments = definition_of(checkpoint, attempt) or {}
    return [JobStatusHook.from_dict(hook) for hook in arguments.get("hooks", ())]


def is_committed(checkpoint: Checkpoint, attempt: Attempt) -> bool:
    """Whether the logs say that this attempt's output is the batch's, or was before a replay. They outrank whatever
    anybody else says of the attempt."""
    key, epoch = attempt.key, attempt.epoch
    commit = checkpoint.lane(key.lane).commit_log.get(key.id)
    if commit is not None and commit.epoch == epoch:
        return True
    replays = checkpoint.replays
    answers = [replays.completed(key, number) for number in replays.epochs.ends(key)]
    return any(answer is not None and answer.get("attempt") == epoch for answer in answers)


def is_published(attempt: Attempt, sinks: Sequence[Sink]) -> bool:
    """Whether the attempt's output is in one of the sinks."""
    return any((found := sink.contains(attempt.key)) is not None and found.epoch == attempt.epoch for sink in sinks)


def begin_attempt(checkpoint: Checkpoint, attempt: Attempt, *, pipeline: str, sink: Sink) -> None:
    """Tell the hooks that the attempt is there. :raises HookError: if one refuses it."""
    tell_created(
        hooks_of(checkpoint, attempt), _context(attempt, pipeline=pipeline, sink=sink), checkpoint.deliveries
    )  # fmt: skip


def end_attempt(checkpoint: Checkpoint, attempt: Attempt, end: AttemptEnd, *, pipeline: str, sink: Sink) -> bool:
    """Record how the attempt ended, tell the hooks, forget the lease. Can be said again after a crash anywhere.

    The first end on record stays. Only a commit outranks it: an attempt that was given up, but published in that very
    moment, is told FINISHED last.

    :return: True if nothing is left to do; else the lease stays, and by it the janitor finds the attempt.
    """
    key, epoch = attempt.key, attempt.epoch
    if not checkpoint.attempts.end(key, epoch, end) and end.state != "succeeded":
        end = checkpoint.attempts.ended(key, epoch) or end
    try:
        hooks = hooks_of(checkpoint, attempt)
    except MicroBatchError as error:
        log.warning("the hooks of batch %s attempt %s cannot be called from here: %s", key, epoch, error)
        return False
    context = _context(attempt, pipeline=pipeline, sink=sink)
    if not tell_end(hooks, context, checkpoint.deliveries, status=_STATUS[end.state], error=end.error):
        return False
    checkpoint.leases.forget(key, epoch)
    return True


def _context(attempt: Attempt, *, pipeline: str, sink: Sink) -> JobContext:
    return JobContext(
        pipeline=pipeline,
        key=attempt.key,
        epoch=attempt.epoch,
        run=attempt.run,
        stage=str(sink.stage(attempt.key, attempt.epoch).report),
    )
