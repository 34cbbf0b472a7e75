"""Job status hooks: what a user wants done when an attempt is created and when it has ended."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.deliveries import Deliveries
from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.definition import Definition, class_path
from airflow_provider_microbatch.exceptions import DefinitionError, HookError

log = logging.getLogger(__name__)

CREATED = "created"
FINISHED = "finished"
FAILED = "failed"
CANCELED = "canceled"
TERMINAL = (FINISHED, FAILED, CANCELED)

_OF_ONE_PROCESS = ("unusual_prefix_", "__main__")
"""Modules that no other process can import: Airflow's name for a DAG file, and a script."""


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """Which attempt a hook is told of.

    :param pipeline: name of the pipeline.
    :param key: the batch.
    :param epoch: the attempt.
    :param run: the run that made it; None outside of Airflow.
    :param stage: where the attempt writes.
    """

    pipeline: str
    key: BatchKey
    epoch: int
    run: RunIdentity | None
    stage: str


class JobStatusHook(Definition):
    """Base of hooks. A subclass is a frozen dataclass in a module that workers and janitor can import.

    Each attempt is CREATED, then FINISHED, FAILED or CANCELED. A terminal status reaches a hook at least once: the
    process of a killed task calls nothing, so the janitor does. Write terminal methods so that a second call, from
    another process, does no harm, and so that they drop only what the attempt's own ``on_created`` made; they are
    called as well where ``on_created`` failed or never ran.
    """

    def on_created(self, context: JobContext) -> None:
        """The attempt's epoch is durable, its engine not started. Called once; raising fails the attempt."""

    def on_finished(self, context: JobContext) -> None:
        """The attempt's output is published and committed."""

    def on_failed(self, context: JobContext, error: str) -> None:
        """The attempt will not publish.

        :param error: text of the error, or how the attempt was found dead.
        """

    def on_canceled(self, context: JobContext) -> None:
        """The task was told to stop; the attempt will not publish."""


def check_hook(hook: object, *, where: str) -> None:
    """:raises DefinitionError: if it is no hook, or one that another process could not call."""
    if not isinstance(hook, JobStatusHook):
        raise DefinitionError(f"{where}: {type(hook).__name__} is no JobStatusHook.")
    path = class_path(type(hook))
    if path.startswith(_OF_ONE_PROCESS) or "<locals>" in path:
        raise DefinitionError(
            f"{where}: hook {path!r} cannot be imported by another process, and the janitor has to call it when its "
            "task was killed. Move the class to a module beside the DAG file or to a package."
        )
    try:
        same = Definition.from_dict(json.loads(json.dumps(hook.to_dict()))) == hook
    except (TypeError, ValueError) as error:
        raise DefinitionError(f"{where}: hook {path!r} cannot be written down: {error}") from error
    if not same:
        raise DefinitionError(
            f"{where}: hook {path!r} is another one after a round trip through JSON. Make it a frozen dataclass whose "
            "fields are JSON values."
        )


def tell_created(hooks: Sequence[JobStatusHook], context: JobContext, deliveries: Deliveries) -> None:
    """Tell every hook that the attempt is there. Recorded before the call, so that no hook is ever told twice.

    :raises HookError: with the error of the first hook that raised.
    """
    for index, hook in enumerate(hooks):
        if deliveries.record(context.key, context.epoch, index, CREATED):
            try:
                hook.on_created(context)
            except Exception as error:
                raise HookError(
                    f"batch {context.key} attempt {context.epoch}: hook {class_path(type(hook))} refused it in "
                    f"on_created: {type(error).__name__}: {error}"
                ) from error


def tell_end(
    hooks: Sequence[JobStatusHook], context: JobContext, deliveries: Deliveries, *, status: str, error: str | None
) -> bool:
    """Tell every hook that was not told yet how the attempt ended, in the pipeline's order. Recorded after the call, so
    that a crash in between makes a second call and never none. Never raises: an attempt's end is not undone.

    :param status: one of ``TERMINAL``.
    :return: True if all hooks are told; else it has to be said again.
    """
    told = deliveries.all(context.key, context.epoch) if hooks else set()
    complete = True
    for index, hook in enumerate(hooks):
        if (index, status) in told:
            continue
        try:
            if status == FINISHED:
                hook.on_finished(context)
            elif status == CANCELED:
                hook.on_canceled(context)
            else:
                hook.on_failed(context, error or "unknown")
            deliveries.record(context.key, context.epoch, index, status)
        except Exception:
            complete = False
            log.exception(
                "Hook %s failed in on_%s of batch %s attempt %s; the janitor calls it again",
                class_path(type(hook)), status, context.key, context.epoch,
            )  # fmt: skip
    return complete
