"""The data interval of a run, as its timetable means it, and the work of the interval. No other module asks Airflow's
timetables."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.exceptions import IntervalError
from airflow_provider_microbatch.execution.backfill import IntervalWork
from airflow_provider_microbatch.execution.own_batches import as_planned, planned_interval
from airflow_provider_microbatch.pipeline import INTERVAL, Pipeline
from airflow_provider_microbatch.sources.intervals import Interval
from airflow_provider_microbatch.task_context.run_context import (
    identity_of,
    is_backfill,
    is_scheduled,
    open_checkpoint,
    other_runs_go_on,
)

if TYPE_CHECKING:
    from airflow.sdk import Context


def interval_work(pipeline: Pipeline, context: Context) -> IntervalWork | None:
    """The work of a run that has a data interval: of a run of Airflow's backfill, of any run of an interval pipeline,
    or of a cleared run that has planned the batch of one before. None for all other runs, which read what is new.

    :raises IntervalError: if the run should have a data interval and has none.
    """
    checkpoint, run = open_checkpoint(pipeline), identity_of(context)
    if pipeline.plan == INTERVAL or is_backfill(context):
        interval: Interval | None = as_planned(checkpoint, interval_of(context), run)
    else:
        interval = planned_interval(checkpoint, run)
    if interval is None:
        return None
    return IntervalWork(
        pipeline=pipeline,
        checkpoint=checkpoint,
        interval=interval,
        others_run=lambda: other_runs_go_on(context),
        # The scheduler makes its runs in order; a backfill and a user make runs in any order.
        in_order=is_scheduled(context),
    )


def wanted_interval(pipeline: Pipeline, context: Context) -> Interval | None:
    """The data interval of a run of an interval pipeline; None for pipelines that read what is new.

    :raises IntervalError: as :func:`interval_of`.
    """
    return interval_of(context) if pipeline.plan == INTERVAL else None


def interval_of(context: Context) -> Interval:
    """The data interval of a run.

    With a partitioned timetable the interval goes from the partition date to the next tick. If Airflow gives the run an
    interval without length, as for a cron schedule by default, the interval goes from the tick before to the run's own.

    :raises IntervalError: if the run has no data interval, or its timetable cannot tell the interval.
    """
    dag_run: Any = context["dag_run"]
    start, end = dag_run.data_interval_start, dag_run.data_interval_end
    partition = dag_run.partition_date
    if partition is not None:
        start, end = partition, _period_after(context, partition)
    elif start is None or end is None:
        raise IntervalError(
            f"run {dag_run.run_id!r} has no data interval and no partition date, so nobody knows which data it is for. "
            "Trigger it with a logical date, or use a schedule whose runs have one."
        )
    elif start == end:
        start = _period_before(context, end)
    first = getattr(context["dag"], "start_date", None)
    return Interval.between(start, end, first=first)


def _period_after(context: Context, tick: datetime) -> datetime:
    from airflow.sdk.timezone import coerce_datetime
    from airflow.timetables.base import TimeRestriction

    periods = _periods(context)
    if hasattr(periods, "_expression"):
        # next_dagrun_info() would begin with the next interval, if the tick is a local time that no clock shows.
        return periods._get_next(coerce_datetime(tick))  # type: ignore[no-any-return]
    first = TimeRestriction(earliest=coerce_datetime(tick), latest=None, catchup=True)
    info = periods.next_dagrun_info(last_automated_data_interval=None, restriction=first)
    return _known(info, context).data_interval.end  # type: ignore[no-any-return]


def _period_before(context: Context, tick: datetime) -> datetime:
    from airflow.sdk.timezone import coerce_datetime

    periods, end = _periods(context), coerce_datetime(tick)
    before: datetime = periods.infer_manual_data_interval(run_after=end).start
    return _tick_before(periods._get_next, end, guess=before) if hasattr(periods, "_expression") else before


def _tick_before(after: Callable[[Any], Any], tick: Any, *, guess: Any) -> datetime:
    """The last tick of a cron schedule before one of its ticks.

    Airflow makes runs by stepping forward, and stepping back is not the reverse where a clock goes forward. From the
    tick in the skipped hour, a step back finds that tick itself; from the tick of the next day, a step back finds a
    tick that no run was made for. So the schedule is walked forward to the tick, from far enough that the steps have
    fallen into the schedule's own.

    :param after: returns the first tick after a moment.
    :param tick: the tick, or a moment that is no tick, as of a run that a user has triggered.
    :param guess: the tick before, as a step back finds it, which tells how far apart ticks are. The guess is returned
        for a moment that is no tick: such an interval must not change between tries.
    """
    span = max(2 * (tick - guess), timedelta(hours=3))
    while True:
        ticks = [after(tick - span)]
        while ticks[-1] < tick:
            ticks.append(after(ticks[-1]))
        # The first of these ticks follows a moment which is no tick.
        if len(ticks) > 2:
            return ticks[-2] if ticks[-1] == tick else guess  # type: ignore[no-any-return]
        span *= 4


def _periods(context: Context) -> Any:
    """The schedule as a timetable whose runs have the time between two ticks as their interval."""
    from airflow.serialization.encoders import coerce_to_core_timetable
    from airflow.timetables.interval import CronDataIntervalTimetable, DeltaDataIntervalTimetable

    timetable: Any = context["dag"].timetable
    timetable = coerce_to_core_timetable(getattr(timetable, "timetable", timetable))
    written = timetable.serialize()
    if "expression" in written:
        return CronDataIntervalTimetable.deserialize(written)
    if "delta" in written:
        return DeltaDataIntervalTimetable.deserialize(written)
    return _known(None, context)


def _known(value: Any, context: Context) -> Any:
    if value is None:
        timetable = type(context["dag"].timetable).__name__
        raise IntervalError(
            f"runs of a {timetable} have data intervals without length, and how far apart its ticks are is not known "
            "here. Use CronDataIntervalTimetable, or give the timetable an interval."
        )
    return value
