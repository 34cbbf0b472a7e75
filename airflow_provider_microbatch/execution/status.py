"""The end of an attempt: put on record first, then told to the pipeline's hooks; then its lease is forgotten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt, AttemptEnd
from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import BrokenLogError, DefinitionError
from airflow_provider_microbatch.job_status import (
    CANCELED,
    FAILED,
    FINISHED,
    JobContext,
    JobStatusHook,
    Telling,
    bounded,
    tell_created,
    tell_end,
)
from airflow_provider_microbatch.sinks import OpenSink

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


def definition_if_there(checkpoint: Checkpoint, attempt: Attempt) -> Mapping[str, Any] | None:
    """As :func:`definition_of`, but None also where the definition is gone: whoever knows that a stranger wrote it has
    removed it, as ``rewind`` says, and the janitor and retention must not stop at its attempt for ever."""
    try:
        return definition_of(checkpoint, attempt)
    except BrokenLogError:
        return None


def hooks_of(checkpoint: Checkpoint, attempt: Attempt, *, live: Sequence[Definition] = ()) -> list[JobStatusHook]:
    """The hooks of the pipeline as the attempt ran it.

    :param live: hooks at hand; for a hook on record in the same form as one of these, that one is returned.
    :raises UntrustedError: if a hook must not be loaded because a checkpoint names it.
    :raises DefinitionError: if this process cannot import a hook.
    """
    arguments = definition_of(checkpoint, attempt) or {}
    recorded = arguments.get("hooks") or ()
    if not isinstance(recorded, (list, tuple)):
        raise DefinitionError(f"the hooks of batch {attempt.key} attempt {attempt.epoch} are no list.")
    return [JobStatusHook.from_dict(hook, live=live) for hook in recorded]


def is_committed(checkpoint: Checkpoint, attempt: Attempt) -> bool:
    """Whether the logs say that this attempt's output is the batch's, or was before a replay. The logs outrank every
    other record of the attempt."""
    key, epoch = attempt.key, attempt.epoch
    commit = checkpoint.lane(key.lane).commit_of(key.id)
    if commit is not None and commit.epoch == epoch:
        return True
    replays = checkpoint.replays
    answers = [replays.completed(key, number) for number in replays.epochs.ends(key)]
    return any(answer is not None and answer.get("attempt") == epoch for answer in answers)


def begin_attempt(
    checkpoint: Checkpoint, attempt: Attempt, *, pipeline: str, sink: OpenSink, live: Sequence[Definition]
) -> None:
    """Tell the hooks that the attempt is there.

    :param live: the hooks at hand; see :func:`hooks_of`.
    :raises HookError: if a hook refuses the attempt.
    """
    hooks = hooks_of(checkpoint, attempt, live=live)
    tell_created(hooks, _context(attempt, pipeline=pipeline, sink=sink), checkpoint.deliveries)


def end_attempt(
    checkpoint: Checkpoint,
    attempt: Attempt,
    end: AttemptEnd,
    *,
    pipeline: str,
    sink: OpenSink,
    live: Sequence[Definition] = (),
) -> Telling:
    """Record how the attempt ended, tell the hooks, forget the lease. Can be called again after a crash anywhere.

    The first end on record stays. Only a commit outranks it: the hooks of an attempt that was given up, but published
    in that very moment, are told FINISHED last.

    :param live: hooks at hand; see :func:`hooks_of`.
    :return: how far the telling of the hooks has come. As long as that is not done the lease stays, and by the lease
        the janitor finds the attempt.
    """
    key, epoch = attempt.key, attempt.epoch
    if end.state == "succeeded" and attempt.request is not None:
        # Before the lease goes: no process would find the attempt again, and with its run deleted none would answer.
        checkpoint.replays.complete_rest(attempt)
    if not checkpoint.attempts.end(key, epoch, end) and end.state != "succeeded":
        end = checkpoint.attempts.ended(key, epoch) or end
    hooks: list[JobStatusHook] = []
    # Hooks that cannot be imported any more are bounded as a failing hook is.
    told = bounded(
        lambda: hooks.extend(hooks_of(checkpoint, attempt, live=live)),
        deliveries=checkpoint.deliveries,
        key=key,
        epoch=epoch,
        delivery=f"all.{_STATUS[end.state]}",
        hook="finding the pipeline's hooks",
    )
    if told is Telling.DONE:
        context = _context(attempt, pipeline=pipeline, sink=sink)
        told = tell_end(hooks, context, checkpoint.deliveries, status=_STATUS[end.state], error=end.error)
    if told is Telling.DONE:
        checkpoint.leases.forget(key, epoch)
    return told


def _context(attempt: Attempt, *, pipeline: str, sink: OpenSink) -> JobContext:
    return JobContext(
        pipeline=pipeline,
        key=attempt.key,
        epoch=attempt.epoch,
        run=attempt.run,
        stage=str(sink.stage(attempt.batch, attempt.epoch).report),
        checkpoint=attempt.batch.checkpoint,
    )
