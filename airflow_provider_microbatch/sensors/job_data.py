"""A sensor that waits until any pipeline of a job has a batch to make."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, conf
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.graph.watch import JobWatch
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sensors.new_data import rescheduled_since_ms
from airflow_provider_microbatch.task_context.cleared_runs import looks_at_intervals
from airflow_provider_microbatch.task_context.complete import (
    FIELD,
    SKIP,
    check_when_complete,
    end_complete,
    has_rested,
    rest_seconds,
)
from airflow_provider_microbatch.task_context.run_context import identity_of, is_backfill
from airflow_provider_microbatch.triggers.job_data import (
    JobDataTrigger,
    cleared_runs,
    first_that_gives_way,
    watch_of,
)
from airflow_provider_microbatch.triggers.new_data import COMPLETE, NOT_IMPORTABLE, reason_of

if TYPE_CHECKING:
    from airflow.sdk import Context

RETRY_SECONDS = 60.0
"""The first pause of a pipeline whose batch failed, in seconds."""


class JobDataSensor(BaseSensorOperator):
    """Wait until one pipeline of a job has a batch to make. Then the run goes on for all pipelines of the job, and the
    pipelines that have nothing to do skip. The sensor starts no JVM, and writes nothing.

    The sensor does not fire for a pipeline whose batch failed before the pause of that pipeline is over. In a run of
    Airflow's backfill the sensor fires at once.

    :param pipelines: the pipelines of the job, which plan what is new.
    :param retry_seconds: how long a pipeline is left alone after its batch failed, in seconds; twice as long after each
        further failure, up to an hour.
    :param deferrable: wait in the triggerer.
    :param poke_interval: seconds between two looks at the sources, also in the triggerer.
    :param when_complete: what becomes of a run when all sources of all pipelines are finished. ``skip``: the sensor and
        the run's batches are skipped, and the run is a success; in a DAG that runs ``@continuous`` the sensor stays for
        an hour, or the next run would follow at once. ``pause``: as the run succeeds the scheduler pauses the DAG.
    :param mode: how a worker waits; ``reschedule`` frees it between two looks.
    :raises DefinitionError: for a pipeline that plans by data intervals, whose run begins when its interval is over.
    """

    template_fields: Sequence[str] = (FIELD,)
    ui_color = "#d9e8f3"

    def __init__(
        self,
        *,
        pipelines: Sequence[Pipeline],
        retry_seconds: float = RETRY_SECONDS,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poke_interval: timedelta | float = 10,
        when_complete: str = SKIP,
        mode: str = "reschedule",
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, mode=mode, **kwargs)
        self.pipelines = tuple(pipelines)
        by_interval = [pipeline.name for pipeline in self.pipelines if pipeline.plan != LIVE]
        if by_interval or not self.pipelines:
            raise DefinitionError(
                f"task {self.task_id!r} waits for new data of pipelines that plan what is new"
                + (f", and {by_interval[0]!r} plans by data intervals. Leave the sensor out." if by_interval else ".")
            )
        self.retry_seconds = retry_seconds
        self.deferrable = deferrable
        self.microbatch_when_complete = check_when_complete(when_complete, where=f"task {self.task_id!r}")
        self._watch: JobWatch | None = None
        self._clears = cleared_runs(self.pipelines)
        self._began_ms = now_ms()

    def execute(self, context: Context) -> Any:
        """Look for work; when there is none yet, go on waiting."""
        if not self.deferrable:
            return super().execute(context)
        if not self.poke(context):
            self.defer(
                trigger=JobDataTrigger(
                    pipelines=[pipeline.to_dict() for pipeline in self.pipelines],
                    poll_interval=self.poke_interval,
                    retry_seconds=self.retry_seconds,
                    run=dataclasses.asdict(identity_of(context)),
                    rest_seconds=self._rest_seconds(context),
                ),
                method_name=self.execute_complete.__name__,
                timeout=timedelta(seconds=self.timeout),
            )
        return None

    @lifetime()
    def poke(self, context: Context) -> bool:
        """Whether any pipeline has work.

        :raises AirflowSkipException: if a cleared run of the DAG waits for this run to end, or all pipelines are
            complete.
        """
        if is_backfill(context):
            return True
        run = identity_of(context)
        if self._watch is None:
            self._watch = watch_of(
                self.pipelines, run, retry_seconds=self.retry_seconds, waits_since_ms=rescheduled_since_ms(context)
            )
        decision = self._watch.look()
        self.log.info("%s: %s", "Fires" if decision.fire else "Not yet", decision.reason)
        if not decision.fire:
            rescheduled_ms, present_ms = rescheduled_since_ms(context), now_ms()
            asks = looks_at_intervals(
                context, since_ms=rescheduled_ms, now_ms=present_ms, poke_seconds=self.poke_interval
            )
            cleared = first_that_gives_way(self._clears, run, of_intervals=asks)
            if cleared is not None:
                raise AirflowSkipException(cleared)
            since_ms = rescheduled_ms or self._began_ms
            if has_rested(decision, since_ms=since_ms, now_ms=present_ms, seconds=self._rest_seconds(context)):
                end_complete(context, decision.reason)
        return decision.fire

    def _rest_seconds(self, context: Context) -> float:
        return rest_seconds(context["dag"], self.microbatch_when_complete, timeout=self.timeout)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Go on in a worker with the trigger's event.

        :return: why the sensor fires.
        :raises AirflowException: with the text of the trigger's error.
        :raises AirflowSkipException: if a cleared run of the DAG waits for this run to end, or all are complete.
        """
        if event["status"] == NOT_IMPORTABLE:
            self.log.warning("The triggerer cannot wait, so workers do: %s", event["reason"])
            return super().execute(context)
        if event["status"] == COMPLETE:
            end_complete(context, event["reason"])
        self.log.info("Fires: %s", reason_of(event, what="the job"))
        return event["reason"]
