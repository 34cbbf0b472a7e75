"""The listener: called by Airflow in scheduler and API server for every task, and in the process of a task of ours.

In the task's process the listener ends an attempt that ``execute`` has left without an end. In scheduler and API server
it puts marks, and ignores tasks that are not ours. :mod:`airflow_provider_microbatch.listeners.events` lists what each
event means. As in that table, T below is the task's own process, A the API server, S the scheduler.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from airflow.listeners import hookimpl

log = logging.getLogger(__name__)

FIELD = "microbatch_checkpoint"
"""Template field by which processes without the DAG file recognize a task of ours: the address of its checkpoint."""

WHEN_COMPLETE = "microbatch_when_complete"
"""Template field by which the listener recognizes a task that may want its DAG paused."""

CANCELED = "canceled"
FAILED = "failed"


@hookimpl
def on_task_instance_success(previous_state: Any, task_instance: Any) -> None:
    """T: end the attempt, as the commit log may have an end that the hooks were not told. A: mark what the user did."""
    if _is_own(task_instance):
        _settle(task_instance, None)
    elif previous_state is None:
        _mark_task(task_instance, status=CANCELED, reason="a user marked the task as success", queried=True)


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: Any, error: Any) -> None:
    """T: end the attempt, also if a retry follows. A: mark what the user did. S: mark that the process is gone."""
    if _is_own(task_instance):
        _settle(task_instance, error if isinstance(error, BaseException) else RuntimeError(str(error)))
    elif previous_state is None:
        _mark_task(task_instance, status=CANCELED, reason="a user marked the task as failed", queried=True)
    else:
        _mark_task(task_instance, status=FAILED, reason=str(error), queried=False)


@hookimpl
def on_task_instance_skipped(previous_state: Any, task_instance: Any) -> None:
    """T: nothing to do, as a skip opens no attempt. A: mark what the user did."""
    if not _is_own(task_instance) and previous_state is None:
        _mark_task(task_instance, status=CANCELED, reason="a user marked the task as skipped", queried=True)


@hookimpl
def on_dag_run_success(dag_run: Any, msg: str) -> None:
    """S: pause the DAG, if the run found that there will never be a batch and a task of it has ``pause`` set."""
    tasks = getattr(getattr(dag_run, "dag", None), "task_dict", {}).values()
    if any(getattr(task, WHEN_COMPLETE, None) == "pause" for task in tasks):
        from airflow_provider_microbatch.listeners.pausing import pause_if_complete

        pause_if_complete(dag_run)


@hookimpl
def on_dag_run_failed(dag_run: Any, msg: str) -> None:
    """A or S: mark the run. For a task that was killed and has no retry left, Airflow calls no other hook."""
    by_user = "manually" in msg
    reason = "a user marked the run as failed" if by_user else f"the DAG run failed: {msg}"
    tasks = getattr(getattr(dag_run, "dag", None), "task_dict", {}).values()
    places = {place for task in tasks if (place := _place_of(task)) is not None}
    # A run that timed out was ended by its author's wish, not by an error.
    status = CANCELED if by_user or msg == "timed_out" else FAILED
    _mark(places, dag_id=dag_run.dag_id, run_id=dag_run.run_id, task_id=None, status=status, reason=reason)


def _is_own(task_instance: Any) -> bool:
    """Whether this is the process of a task: only in such a process a task instance has the operator that the DAG file
    made."""
    return hasattr(getattr(task_instance, "task", None), "execute")


def _place_of(task: Any) -> str | None:
    place = getattr(task, FIELD, None)
    return place if isinstance(place, str) and place else None


def _settle(task_instance: Any, error: BaseException | None) -> None:
    task = task_instance.task
    if _place_of(task) is None:
        return
    from airflow_provider_microbatch.engines.lookup import find_engine
    from airflow_provider_microbatch.exceptions import MicroBatchError
    from airflow_provider_microbatch.execution.settle import settle
    from airflow_provider_microbatch.lifetime import lifetime
    from airflow_provider_microbatch.task_context.run_context import open_execution

    try:
        with lifetime():
            settle(open_execution(task.pipeline), ti_id=str(task_instance.id), error=error, engine_of=find_engine)
    except (MicroBatchError, OSError) as failed:
        log.warning("the attempt of this task could not be ended, which is left to the janitor: %s", failed)


def _mark_task(task_instance: Any, *, status: str, reason: str, queried: bool) -> None:
    """Put a mark for a task of ours; do nothing for any other task.

    :param queried: ask the database for the rendered field if the task is not at hand. Never in the scheduler's loop.
    """
    place = _place_of(getattr(task_instance, "task", None)) or (_rendered_place(task_instance) if queried else None)
    if place is None:
        return
    _mark(
        {place},
        dag_id=task_instance.dag_id,
        run_id=task_instance.run_id,
        task_id=task_instance.task_id,
        map_index=task_instance.map_index,
        # Before the scheduler calls the listener for a retry, it gives the task instance the next try's id.
        ti_id=None if str(task_instance.state) == "up_for_retry" else str(task_instance.id),
        try_number=task_instance.try_number,
        status=status,
        reason=reason,
    )


def _rendered_place(task_instance: Any) -> str | None:
    """The field as it was rendered when the task ran; None for a task without this field."""
    from airflow.models.renderedtifields import RenderedTaskInstanceFields as Rendered
    from sqlalchemy import inspect, select

    mapped = inspect(task_instance, raiseerr=False)
    session = None if mapped is None else mapped.session
    if session is None:
        return None
    query = select(Rendered.rendered_fields).where(
        Rendered.dag_id == task_instance.dag_id,
        Rendered.task_id == task_instance.task_id,
        Rendered.run_id == task_instance.run_id,
        Rendered.map_index == task_instance.map_index,
    )
    with session.no_autoflush:
        place = (session.scalar(query) or {}).get(FIELD)
    return place if isinstance(place, str) and place else None


def _mark(places: Iterable[str], **said: Any) -> None:
    for place in places:
        from airflow_provider_microbatch.checkpoint.marks import Mark
        from airflow_provider_microbatch.clock import now_ms
        from airflow_provider_microbatch.listeners.marking import MARKING

        MARKING.put(place, Mark(**{**said, "reason": said["reason"][:500]}, marked_ms=now_ms()))
