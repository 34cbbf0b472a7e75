"""A sensor that waits until a pipeline has a batch to make."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, conf
from airflow.sdk.exceptions import AirflowSkipException
from airflow.triggers.base import StartTriggerArgs

from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.operators.micro_batch import check_pipeline
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.task_context.cleared_runs import ClearedRuns, looks_at_intervals
from airflow_provider_microbatch.task_context.complete import (
    FIELD,
    SKIP,
    check_when_complete,
    end_complete,
    has_rested,
    rest_seconds,
)
from airflow_provider_microbatch.task_context.data_interval import wanted_interval
from airflow_provider_microbatch.task_context.run_context import identity_of, is_backfill
from airflow_provider_microbatch.triggers.new_data import (
    COMPLETE,
    NOT_IMPORTABLE,
    NewDataTrigger,
    decide,
    gives_way,
    reason_of,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

_TRIGGER = f"{NewDataTrigger.__module__}.{NewDataTrigger.__qualname__}"
_OF_A_DAG_FILE = ("unusual_prefix_", "__main__")
"""Prefixes of the names of modules that no other process can import."""


class NewDataSensor(BaseSensorOperator):
    """Wait until a batch is to be finished, or a source has data newer than the offset log. The sensor starts no JVM,
    and writes nothing.

    The sensor fires at once when a batch is planned and not committed, when its own run has planned a batch already,
    and when the run is a backfill. For a pipeline that plans by data intervals the sensor waits until the interval of
    its run is over.

    The sensor is skipped when nothing is new and a run of its DAG that made a batch was cleared and is queued: with one
    active run at a time the cleared run waits for this run, and data that comes later is left to the next run.

    A deferrable sensor starts in the triggerer and ends there: no worker is used at all. Workers poll a source whose
    code the triggerer cannot import; they are free between two polls.

    :param pipeline: the pipeline to watch.
    :param deferrable: wait in the triggerer.
    :param poke_interval: seconds between two looks at the sources, also in the triggerer.
    :param end_from_trigger: end the task in the triggerer. Airflow emits no asset events then, so a sensor with
        ``outlets`` ends in a worker, whatever this argument is.
    :param when_complete: what becomes of a run when all sources of the pipeline are finished. ``skip``: the sensor and
        the tasks after it are skipped; in a DAG that runs ``@continuous`` the sensor stays for an hour, or the next run
        would follow at once. ``pause``: as the run succeeds the scheduler pauses the DAG.
    :param mode: how a worker waits; ``reschedule`` frees it between two looks.
    """

    template_fields: Sequence[str] = (FIELD,)
    ui_color = "#d9e8f3"

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poke_interval: timedelta | float = 10,
        end_from_trigger: bool = True,
        when_complete: str = SKIP,
        mode: str = "reschedule",
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, mode=mode, **kwargs)
        self.pipeline = check_pipeline(pipeline, operator=f"task {self.task_id!r}")
        self.end_from_trigger = end_from_trigger and not self.outlets
        self.microbatch_when_complete = check_when_complete(when_complete, where=f"task {self.task_id!r}")
        self._began_ms = now_ms()
        self._searched_ms: int | None = None
        self._clears = ClearedRuns(self.pipeline)
        definition = self.pipeline.to_dict()
        self.deferrable = deferrable and not any(path.startswith(_OF_A_DAG_FILE) for path in _classes(definition))
        if self.deferrable:
            self.start_from_trigger = True
            self.start_trigger_args = StartTriggerArgs(
                trigger_cls=_TRIGGER,
                trigger_kwargs={
                    "pipeline": definition,
                    "poll_interval": self.poke_interval,
                    "end_from_trigger": self.end_from_trigger,
                    "rest_seconds": self._rest_seconds(self.get_dag()),
                },
                next_method=self.execute_complete.__name__,
                timeout=timedelta(seconds=self.timeout),
            )

    @lifetime()
    def execute(self, context: Context) -> Any:
        """Look for work; when there is none yet, go on waiting. A worker calls this of a deferrable sensor only in
        ``dag.test()``."""
        if not self.deferrable:
            return super().execute(context)
        if not self.poke(context):
            run = dataclasses.asdict(identity_of(context))
            interval = wanted_interval(self.pipeline, context)
            trigger = NewDataTrigger(
                pipeline=self.pipeline.to_dict(),
                poll_interval=self.poke_interval,
                run=run,
                interval=None if interval is None else dataclasses.asdict(interval),
                rest_seconds=self._rest_seconds(context["dag"]),
            )
            self.defer(
                trigger=trigger,
                method_name=self.execute_complete.__name__,
                timeout=timedelta(seconds=self.timeout),
            )
        return None

    def poke(self, context: Context) -> bool:
        """Whether the pipeline has work, by one look at logs and sources.

        :raises AirflowSkipException: if a cleared run of the DAG waits for this run to end, or there will never be a
            batch.
        """
        asked_ms = now_ms()
        decision = decide(
            self.pipeline,
            identity_of(context),
            backfill=is_backfill(context),
            interval=wanted_interval(self.pipeline, context),
            searched_ms=self._searched(context),
        )
        self._searched_ms = asked_ms
        self.log.info("%s: %s", "Fires" if decision.fire else "Not yet", decision.reason)
        if not decision.fire:
            rescheduled_ms, present_ms = rescheduled_since_ms(context), now_ms()
            asks = looks_at_intervals(
                context, since_ms=rescheduled_ms, now_ms=present_ms, poke_seconds=self.poke_interval
            )
            cleared = gives_way(self._clears, identity_of(context), of_intervals=asks)
            if cleared is not None:
                raise AirflowSkipException(cleared)
            since_ms = rescheduled_ms or self._began_ms
            if has_rested(decision, since_ms=since_ms, now_ms=present_ms, seconds=self._rest_seconds(context["dag"])):
                end_complete(context, f"pipeline {self.pipeline.name!r} is {decision.reason}")
        return decision.fire

    def _rest_seconds(self, dag: Any) -> float:
        return rest_seconds(dag, self.microbatch_when_complete, timeout=self.timeout)

    def _searched(self, context: Context) -> int | None:
        """The time at which this try has looked before: in this process, or in the first process of the try that was
        rescheduled. None if it has not looked."""
        return rescheduled_since_ms(context) if self._searched_ms is None else self._searched_ms

    @lifetime()
    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Go on in a worker with the trigger's event.

        :return: why the sensor fires.
        :raises AirflowException: with the text of the trigger's error.
        :raises AirflowSkipException: if a cleared run of the DAG waits for this run to end, or there will never be a
            batch.
        """
        if event["status"] == NOT_IMPORTABLE:
            self.log.warning("The triggerer cannot wait, so workers do: %s", event["reason"])
            return super().execute(context)
        if event["status"] == COMPLETE:
            end_complete(context, f"pipeline {self.pipeline.name!r} is {event['reason']}")
        self.log.info("Fires: %s", reason_of(event, what=f"pipeline {self.pipeline.name!r}"))
        return event["reason"]


def rescheduled_since_ms(context: Context) -> int | None:
    """The time at which the first process of the sensor's try began, if that process had itself rescheduled,
    milliseconds since the epoch, UTC; None in that first process."""
    if not context.get("task_reschedule_count"):
        return None
    ti: Any = context["ti"]
    first = ti.get_first_reschedule_date(context)
    return None if first is None else round(first.timestamp() * 1000)


def _classes(value: Any) -> Iterator[str]:
    """The class paths in a definition's plain form."""
    if isinstance(value, Mapping):
        if "class" in value and "arguments" in value:
            yield str(value["class"])
        for item in value.values():
            yield from _classes(item)
    elif isinstance(value, list):
        for item in value:
            yield from _classes(item)
