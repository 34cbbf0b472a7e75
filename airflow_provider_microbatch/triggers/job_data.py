"""A trigger that waits until any pipeline of a job has a batch to make."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.graph.watch import JobWatch
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.task_context.cleared_runs import ClearedRuns
from airflow_provider_microbatch.task_context.complete import has_rested
from airflow_provider_microbatch.task_context.run_context import open_checkpoint
from airflow_provider_microbatch.triggers.new_data import (
    COMPLETE,
    FAILED,
    FIRED,
    GIVES_WAY,
    NOT_IMPORTABLE,
    decide,
    event,
    gives_way,
)


class JobDataTrigger(BaseTrigger):
    """Asks every ``poll_interval`` seconds whether a pipeline of the job has a batch to make. Never writes.

    The events are those of :class:`~airflow_provider_microbatch.triggers.new_data.NewDataTrigger`.

    :param pipelines: the pipelines, as :meth:`~airflow_provider_microbatch.pipeline.Pipeline.to_dict` gives them.
    :param poll_interval: seconds between two questions.
    :param retry_seconds: the first pause of a pipeline whose batch failed, in seconds.
    :param run: identity of the asking run.
    :param rest_seconds: how long to go on waiting when all pipelines are complete, in seconds.
    """

    def __init__(
        self,
        *,
        pipelines: list[dict[str, Any]],
        poll_interval: float,
        retry_seconds: float,
        run: dict[str, Any],
        rest_seconds: float = 0.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pipelines = pipelines
        self.poll_interval = poll_interval
        self.retry_seconds = retry_seconds
        self._run = run
        self.rest_seconds = rest_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "pipelines": self.pipelines,
                "poll_interval": self.poll_interval,
                "retry_seconds": self.retry_seconds,
                "run": self._run,
                "rest_seconds": self.rest_seconds,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event."""
        try:
            pipelines = await asyncio.to_thread(
                lambda: [Pipeline.from_dict(one, any_server=True) for one in self.pipelines]
            )
        except DefinitionError as error:
            yield event(NOT_IMPORTABLE, str(error))
            return
        try:
            found = await self._wait(pipelines)
        except Exception as error:
            # An event, as an error raised from here would show in the task's log as no more than a failed trigger.
            found = event(FAILED, f"{type(error).__name__}: {error}")
        yield found

    async def _wait(self, pipelines: Sequence[Pipeline]) -> TriggerEvent:
        # One lifetime over all looks, and no generator: see NewDataTrigger.
        with lifetime():
            run = RunIdentity(**self._run)
            watch, clears = watch_of(pipelines, run, retry_seconds=self.retry_seconds), cleared_runs(pipelines)
            since_ms = now_ms()
            while not (decision := await asyncio.to_thread(watch.look)).fire:
                cleared = await sync_to_async(first_that_gives_way)(clears, run)
                if cleared is not None:
                    return event(GIVES_WAY, cleared)
                if has_rested(decision, since_ms=since_ms, now_ms=now_ms(), seconds=self.rest_seconds):
                    self.log.info("Ends: %s", decision.reason)
                    return event(COMPLETE, decision.reason)
                await asyncio.sleep(self.poll_interval)
        self.log.info("Fires: %s", decision.reason)
        return event(FIRED, decision.reason)


def watch_of(
    pipelines: Sequence[Pipeline], run: RunIdentity, *, retry_seconds: float, waits_since_ms: int | None = None
) -> JobWatch:
    """A watch that asks the pipelines of a job for a sensor of a run.

    :param pipelines: the pipelines of the job.
    :param run: identity of the asking run.
    :param retry_seconds: the first pause of a pipeline whose batch failed, in seconds.
    :param waits_since_ms: see :class:`~airflow_provider_microbatch.graph.watch.JobWatch`.
    """
    return JobWatch(
        [(pipeline, open_checkpoint(pipeline)) for pipeline in pipelines],
        ask=lambda pipeline, searched_ms: decide(pipeline, run, backfill=False, searched_ms=searched_ms),
        retry_seconds=retry_seconds,
        waits_since_ms=waits_since_ms,
        was_cleared=run.was_cleared,
    )


def cleared_runs(pipelines: Sequence[Pipeline]) -> list[ClearedRuns]:
    """The cleared runs of each pipeline."""
    return [ClearedRuns(pipeline) for pipeline in pipelines]


def first_that_gives_way(clears: Sequence[ClearedRuns], run: RunIdentity, *, of_intervals: bool = True) -> str | None:
    """Why the run ends without having waited for data, by the first pipeline that has a reason; None if none has.

    :param of_intervals: see :meth:`ClearedRuns.waiting`.
    """
    return next(filter(None, (gives_way(one, run, of_intervals=of_intervals) for one in clears)), None)
