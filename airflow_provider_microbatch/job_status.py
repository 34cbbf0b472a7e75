"""Job status hooks: a user's code that is called when an attempt is created and when the attempt has ended."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

from airflow_provider_microbatch.checkpoint.deliveries import Deliveries
from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.definition import Definition, class_path
from airflow_provider_microbatch.exceptions import DefinitionError, HookError, MicroBatchError
from airflow_provider_microbatch.registry import load_class

log = logging.getLogger(__name__)

CREATED = "created"
FINISHED = "finished"
FAILED = "failed"
CANCELED = "canceled"
TERMINAL = (FINISHED, FAILED, CANCELED)

PAUSES = (0.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0)
"""Seconds before a terminal method that has failed is called again: first at once, since the next process may reach
what this process could not; then later and later. After two hours the method is given up, which is put on record."""


class Telling(IntEnum):
    """The outcome of telling the hooks how an attempt ended."""

    DONE = 0
    """All hooks are told; or given up, which is on record."""
    WAITS = 1
    """A hook failed before, and it is too early to call that hook again."""
    FAILED = 2
    """A hook has failed now."""


_OF_ONE_PROCESS = ("unusual_prefix_", "__main__")
"""Modules that no other process can import: Airflow's name for a DAG file, and a script."""


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """The attempt that a hook is told of.

    :param pipeline: name of the pipeline.
    :param key: the batch.
    :param epoch: the attempt.
    :param run: the run that made the attempt; None outside of Airflow.
    :param stage: where the attempt writes.
    :param checkpoint: id of the pipeline's checkpoint; empty for an attempt from a version that did not identify
        batches by the checkpoint. Checkpoint, pipeline, batch and attempt together identify the attempt where other
        checkpoints may write too.
    """

    pipeline: str
    key: BatchKey
    epoch: int
    run: RunIdentity | None
    stage: str
    checkpoint: str = ""

    @property
    def batch(self) -> BatchIdentity:
        """The place of the batch's stages."""
        return BatchIdentity.at(self.key, checkpoint=self.checkpoint)


class JobStatusHook(Definition):
    """Base of hooks. A subclass is a frozen dataclass in a module that workers and janitor can import.

    Each attempt is CREATED, then FINISHED, FAILED or CANCELED. A terminal status reaches a hook at least once: the
    process of a killed task calls no hook, so the janitor calls it. Write terminal methods so that a second call, from
    another process, does no harm, and so that they drop only what the attempt's own ``on_created`` made; they are
    called as well where ``on_created`` failed or never ran. A terminal method that raises is called again, later and
    later; after nine times the method is given up, which ``microbatch check`` and ``microbatch log`` show.
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
    """:raises DefinitionError: if ``hook`` is not a hook, or if another process could not call the hook."""
    if not isinstance(hook, JobStatusHook):
        raise DefinitionError(f"{where}: {type(hook).__name__} is no JobStatusHook.")
    check_written_down(hook, where=where)


def check_written_down(hook: Definition, *, where: str) -> None:
    """:raises DefinitionError: if another process could not call the hook."""
    path = class_path(type(hook))
    if path.startswith(_OF_ONE_PROCESS) or "<locals>" in path:
        raise DefinitionError(
            f"{where}: hook {path!r} cannot be imported by another process, and the janitor has to call it when its "
            "task was killed. Move the class to a module beside the DAG file or to a package."
        )
    try:
        load_class(path)
        same = (
            Definition.from_dict(json.loads(json.dumps(hook.to_dict())), known=hook.classes(), any_server=True) == hook
        )
    except (TypeError, ValueError) as error:
        raise DefinitionError(f"{where}: hook {path!r} cannot be written down: {error}") from error
    if not same:
        raise DefinitionError(
            f"{where}: hook {path!r} is another one after a round trip through JSON. Make it a frozen dataclass whose "
            "fields are JSON values."
        )


def tell_created(hooks: Sequence[JobStatusHook], context: JobContext, deliveries: Deliveries) -> None:
    """Tell every hook that the attempt is created. Each delivery is recorded before the call, so that no hook is ever
    told twice.

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
) -> Telling:
    """Tell every hook that was not told yet how the attempt ended, in the pipeline's order. Each delivery is recorded
    after the call, so that a crash in between causes a second call and never leaves a hook without a call. Never
    raises: an attempt's end is not undone.

    :param status: one of ``TERMINAL``.
    :return: the outcome of the hook that is furthest from done.
    """

    def tell(index: int, hook: JobStatusHook) -> None:
        if status == FINISHED:
            hook.on_finished(context)
        elif status == CANCELED:
            hook.on_canceled(context)
        else:
            hook.on_failed(context, error or "unknown")
        deliveries.record(context.key, context.epoch, index, status)

    told = deliveries.all(context.key, context.epoch) if hooks else set()
    found = [Telling.DONE]
    for index, hook in enumerate(hooks):
        if (index, status) not in told:
            found.append(
                bounded(
                    partial(tell, index, hook),
                    deliveries=deliveries,
                    key=context.key,
                    epoch=context.epoch,
                    delivery=f"{index}.{status}",
                    hook=f"hook {class_path(type(hook))}",
                )
            )
    return max(found)


def bounded(
    call: Callable[[], None], *, deliveries: Deliveries, key: BatchKey, epoch: int, delivery: str, hook: str
) -> Telling:
    """Make a delivery, unless the delivery was given up, or has failed only just now. Without these bounds a hook that
    fails for good would keep its attempt unfinished, the janitor busy and retention from its work, for ever.

    :param call: raises if the delivery fails.
    :param delivery: ``<index>.<status>``.
    :param hook: a description of the hook, for messages.
    """
    tries, ago = deliveries.tries(key, epoch, delivery)
    if tries > len(PAUSES):
        return Telling.DONE
    if tries and ago < PAUSES[tries - 1]:
        wait = PAUSES[tries - 1] - ago
        log.info("%s failed %s times for batch %s attempt %s; not called for %.0f s", hook, tries, key, epoch, wait)
        return Telling.WAITS
    try:
        call()
    except Exception as error:
        tries += 1
        text = f"{type(error).__name__}: {error}"[:2000]
        is_last = tries > len(PAUSES)
        log.exception(
            "%s failed for batch %s attempt %s (%s), %s of %s tries; %s", hook, key, epoch, delivery, tries,
            len(PAUSES) + 1, "it is given up" if is_last else "the janitor calls it again",
        )  # fmt: skip
        try:
            if is_last:
                # Given up before the last try is recorded: a crash in between makes one more try, and no silence.
                deliveries.give_up(key, epoch, delivery, hook=hook, tries=tries, error=text)
            deliveries.failed(key, epoch, delivery, number=tries, error=text)
        except (MicroBatchError, OSError) as unwritten:
            log.warning("that %s failed cannot be written down: %s", hook, unwritten)
            return Telling.FAILED
        return Telling.DONE if is_last else Telling.FAILED
    return Telling.DONE
