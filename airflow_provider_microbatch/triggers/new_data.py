"""A trigger that waits until a pipeline has a batch to make."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowSkipException
from airflow.triggers.base import BaseTrigger, TaskSkippedEvent, TaskSuccessEvent, TriggerEvent
from asgiref.sync import sync_to_async

from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.engines.lookup import find_engine
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.execution.backfill import IntervalWork
from airflow_provider_microbatch.execution.fire import FireDecision
from airflow_provider_microbatch.execution.own_batches import as_planned, planned_interval
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sources.intervals import Interval
from airflow_provider_microbatch.task_context.cleared_runs import ClearedRuns
from airflow_provider_microbatch.task_context.complete import XCOM, has_rested
from airflow_provider_microbatch.task_context.data_interval import wanted_interval
from airflow_provider_microbatch.task_context.run_context import (
    identity_of,
    is_backfill,
    open_checkpoint,
    open_execution,
)

log = logging.getLogger(__name__)

FIRED = "fired"
FAILED = "failed"
GIVES_WAY = "gives way"
COMPLETE = "complete"
NOT_IMPORTABLE = "not importable"


class NewDataTrigger(BaseTrigger):
    """Asks every ``poll_interval`` seconds whether the pipeline has a batch to make. Never writes.

    Events: ``{"status": "fired", "reason": …}``; ``gives way``, if a cleared run of the DAG waits for this run to end;
    ``complete``, if there will never be a batch; ``failed`` with the error's text; or ``not importable``, if the
    triggerer lacks the code of a source, or does not know whether the run was cleared, so that a worker has to ask.

    :param pipeline: the pipeline as :meth:`~airflow_provider_microbatch.pipeline.Pipeline.to_dict` gives it.
    :param poll_interval: seconds between two questions.
    :param end_from_trigger: end the task in the triggerer, without a worker.
    :param run: identity of the asking run; None if the task started from its trigger: then the identity is taken from
        the task instance that the triggerer provides.
    :param interval: the data interval of the asking run, if the pipeline plans by intervals.
    :param rest_seconds: how long to go on waiting when the pipeline is complete, in seconds.
    """

    def __init__(
        self,
        *,
        pipeline: dict[str, Any],
        poll_interval: float,
        end_from_trigger: bool = False,
        run: dict[str, Any] | None = None,
        interval: dict[str, int] | None = None,
        rest_seconds: float = 0.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pipeline = pipeline
        self.poll_interval = poll_interval
        self.end_from_trigger = end_from_trigger
        self._run = run
        self._interval = interval
        self.rest_seconds = rest_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "pipeline": self.pipeline,
                "poll_interval": self.poll_interval,
                "end_from_trigger": self.end_from_trigger,
                "run": self._run,
                "interval": self._interval,
                "rest_seconds": self.rest_seconds,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event."""
        try:
            # Importing a source's module and listing its files block, and this loop is shared by all triggers.
            pipeline = await asyncio.to_thread(Pipeline.from_dict, self.pipeline, any_server=True)
        except DefinitionError as error:
            yield event(NOT_IMPORTABLE, str(error))
            return
        try:
            found = await self._wait(pipeline)
        except Exception as error:
            # An event, as an error raised from here would show in the task's log as no more than a failed trigger.
            found = event(FAILED, f"{type(error).__name__}: {error}")
        yield found

    async def _wait(self, pipeline: Pipeline) -> TriggerEvent:
        # One lifetime over all looks, so that a client which each look needs is opened once. This is no generator: a
        # generator that yields while the lifetime is open may never be resumed.
        with lifetime():
            run, backfill, interval = self._who(pipeline)
            clears = ClearedRuns(pipeline)
            searched_ms: int | None = None
            since_ms = asked_ms = now_ms()
            while not (
                decision := await asyncio.to_thread(
                    decide, pipeline, run, backfill=backfill, interval=interval, searched_ms=searched_ms
                )
            ).fire:
                self.log.debug("Not yet: %s", decision.reason)
                searched_ms = asked_ms
                cleared = await sync_to_async(gives_way)(clears, run)
                if cleared is not None:
                    return self._skipped(cleared)
                if has_rested(decision, since_ms=since_ms, now_ms=now_ms(), seconds=self.rest_seconds):
                    return self._complete(decision.reason)
                await asyncio.sleep(self.poll_interval)
                asked_ms = now_ms()
        if decision.of_interval and self._run is None:
            return event(NOT_IMPORTABLE, f"{decision.reason} if it was cleared, and a worker alone knows that")
        self.log.info("Fires: %s", decision.reason)
        if self.end_from_trigger:
            return TaskSuccessEvent(xcoms={"return_value": decision.reason})
        return event(FIRED, decision.reason)

    def _skipped(self, reason: str) -> TriggerEvent:
        self.log.info("Gives way: %s", reason)
        return TaskSkippedEvent(xcoms={"return_value": reason}) if self.end_from_trigger else event(GIVES_WAY, reason)

    def _complete(self, reason: str) -> TriggerEvent:
        self.log.info("Ends: %s", reason)
        if not self.end_from_trigger:
            return event(COMPLETE, reason)
        return TaskSkippedEvent(xcoms={"return_value": reason, XCOM: reason})

    def _who(self, pipeline: Pipeline) -> tuple[RunIdentity | None, bool, Interval | None]:
        if self._run is not None:
            return RunIdentity(**self._run), False, Interval.from_dict(self._interval) if self._interval else None
        ti: Any = self.task_instance
        if ti is None:
            return None, False, None
        context = ti.get_template_context()
        run, interval = identity_of(context), wanted_interval(pipeline, context)
        # The triggerer does not know the run's clear number. A later try may come of a clear, so it counts as one. That
        # makes the first question slower: the whole log is searched for a batch of the run; what a batch of a data
        # interval is to a run that was not cleared a worker tells.
        run = dataclasses.replace(run, clear_number=max(run.clear_number, run.try_number - 1))
        return run, is_backfill(context), interval


def gives_way(clears: ClearedRuns, run: RunIdentity | None, *, of_intervals: bool = True) -> str | None:
    """Why the run ends without having waited for data, in words; None if it goes on waiting. Writes nothing.

    :param of_intervals: see :meth:`ClearedRuns.waiting`.
    """
    try:
        cleared = None if run is None else clears.waiting(run, of_intervals=of_intervals)
    except Exception as error:
        # Giving way is a courtesy to another run: that Airflow cannot be asked now is no reason to end this run.
        log.debug("whether a cleared run waits cannot be asked: %s", error, exc_info=True)
        return None
    return None if cleared is None else f"run {cleared!r} was cleared and waits for this one to end"


@lifetime()
def decide(
    pipeline: Pipeline,
    run: RunIdentity | None,
    *,
    backfill: bool,
    interval: Interval | None = None,
    searched_ms: int | None = None,
) -> FireDecision:
    """Whether a sensor fires now. Blocks, and writes nothing.

    :param backfill: the run is of Airflow's own backfill: its data is of the past, so there is nothing to wait for.
    :param interval: the run's data interval, if the pipeline plans by intervals.
    :param searched_ms: when this try has asked before, and the answer was no; milliseconds since the epoch. None if it
        has not asked.
    """
    if interval is not None:
        checkpoint = open_checkpoint(pipeline)
        if run is not None and searched_ms is None:
            interval = as_planned(checkpoint, interval, run)  # if planned, it fires: later looks find nothing planned
        work = IntervalWork(pipeline=pipeline, checkpoint=checkpoint, interval=interval)
        return work.should_fire(run, engine_of=find_engine, searched_ms=searched_ms)
    if backfill:
        return FireDecision(fire=True, reason="the run is a backfill")
    if run is not None and searched_ms is None and planned_interval(open_checkpoint(pipeline), run) is not None:
        reason = "this run has planned the batch of a data interval"
        return FireDecision(fire=True, reason=reason, own=True, of_interval=True)
    return open_execution(pipeline).should_fire(run, engine_of=find_engine, searched_ms=searched_ms)


def event(status: str, reason: str) -> TriggerEvent:
    """The event that tells a sensor a status and its reason."""
    return TriggerEvent({"status": status, "reason": reason})  # type: ignore[no-untyped-call]


def reason_of(told: Mapping[str, Any], *, what: str) -> str:
    """Why a sensor fires, by the event of its trigger.

    :param what: what the sensor watches, for the message.
    :raises AirflowException: with the text of the trigger's error.
    :raises AirflowSkipException: if a cleared run waits for this run to end.
    """
    if told["status"] == FAILED:
        raise AirflowException(f"{what} cannot be watched: {told['reason']}")
    if told["status"] == GIVES_WAY:
        raise AirflowSkipException(told["reason"])
    return str(told["reason"])
