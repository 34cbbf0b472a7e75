"""Which data a run is for: as each kind of timetable means it, and what the operators and the sensor make of it."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import (
    AssetOrTimeSchedule,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    CronTriggerTimetable,
    DeltaTriggerTimetable,
    MultipleCronTriggerTimetable,
)
from airflow.sdk.exceptions import AirflowRescheduleException, AirflowRuntimeError, AirflowSkipException
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.timezone import coerce_datetime
from airflow.serialization.encoders import coerce_to_core_timetable
from airflow.timetables.base import TimeRestriction

from airflow_provider_microbatch.exceptions import EngineError, IntervalError
from airflow_provider_microbatch.execution.left import find_left
from airflow_provider_microbatch.execution.unread import way_on
from airflow_provider_microbatch.operators.steps import CommitMicroBatchOperator, PlanMicroBatchOperator
from airflow_provider_microbatch.sensors.new_data import NewDataSensor
from airflow_provider_microbatch.sources.intervals import Unread
from airflow_provider_microbatch.task_context.data_interval import interval_of
from airflow_provider_microbatch.task_context.run_context import identity_of
from airflow_provider_microbatch.triggers.new_data import NewDataTrigger
from airflow_provider_microbatch.upkeep.source_check import find_without_batch
from tests.airflow_face.support import InlineOperator, InlineSlot, InlineSubmit, context, transform_file
from tests.airflow_face.test_new_data import event, fires, triggered
from tests.execution.intervals import IntervalWorld
from tests.execution.maintaining import applied, rewind
from tests.support.inline_engine import InlineEngine

NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)
MIDNIGHT = datetime(2026, 3, 28, 23, tzinfo=UTC)
"""Of the day on which Berlin's clocks go forward, in UTC."""


def test_an_interval_with_a_length_is_taken_as_it_is() -> None:
    given = context(Path(), interval=(MIDNIGHT, NOON), timetable=CronDataIntervalTimetable("@daily", timezone="UTC"))
    assert str(interval_of(given)) == "[2026-03-28T23:00:00Z, 2026-03-29T12:00:00Z)"


@pytest.mark.parametrize("core", [False, True], ids=["in a worker", "in the triggerer"])
@pytest.mark.parametrize(
    ("timetable", "expected"),
    [
        (CronTriggerTimetable("0 */2 * * *", timezone="UTC"), "[2026-03-29T10:00:00Z, 2026-03-29T12:00:00Z)"),
        (DeltaTriggerTimetable(timedelta(minutes=20)), "[2026-03-29T11:40:00Z, 2026-03-29T12:00:00Z)"),
    ],
)
def test_one_without_length_reaches_back_to_the_tick_before(timetable: Any, expected: str, core: bool) -> None:
    timetable = coerce_to_core_timetable(timetable) if core else timetable
    assert str(interval_of(context(Path(), interval=(NOON, NOON), timetable=timetable))) == expected


def test_a_run_that_a_person_triggers_between_two_ticks_reaches_back_to_the_start_of_the_last_whole_period() -> None:
    moment = datetime(2026, 6, 1, 10, 17, tzinfo=UTC)
    given = context(Path(), interval=(moment, moment), timetable=CronTriggerTimetable("@hourly", timezone="UTC"))
    assert str(interval_of(given)) == "[2026-06-01T09:00:00Z, 2026-06-01T10:17:00Z)"


def test_the_monthly_run_of_june_reads_may() -> None:
    june = datetime(2026, 6, 1, tzinfo=UTC)
    of_june = context(Path(), interval=(june, june), timetable=CronTriggerTimetable("@monthly", timezone="UTC"))
    assert str(interval_of(of_june)) == "[2026-05-01T00:00:00Z, 2026-06-01T00:00:00Z)"


def test_that_of_a_partition_reaches_to_the_next_tick_of_its_timezone() -> None:
    timetable = CronPartitionTimetable("@daily", timezone="Europe/Berlin", run_offset=-1)
    given = context(Path(), interval=None, partition_date=MIDNIGHT, timetable=timetable)
    assert str(interval_of(given)) == "[2026-03-28T23:00:00Z, 2026-03-29T22:00:00Z)"


def test_a_schedule_beside_assets_counts() -> None:
    timetable = AssetOrTimeSchedule(timetable=CronTriggerTimetable("@hourly", timezone="UTC"), assets=[])
    given = context(Path(), interval=(NOON, NOON), timetable=timetable)
    assert str(interval_of(given)) == "[2026-03-29T11:00:00Z, 2026-03-29T12:00:00Z)"


def test_where_it_cannot_be_told_the_error_says_what_to_do() -> None:
    several = MultipleCronTriggerTimetable("@daily", "@hourly", timezone="UTC")
    with pytest.raises(IntervalError, match=r"runs of a MultipleCronTriggerTimetable .* CronDataIntervalTimetable"):
        interval_of(context(Path(), interval=(NOON, NOON), timetable=several))
    with pytest.raises(IntervalError, match=r"'run-1' has no data interval.* logical date"):
        interval_of(context(Path(), interval=None))


@pytest.fixture
def world(tmp_path: Path) -> IntervalWorld:
    transform_file(tmp_path)
    return IntervalWorld(tmp_path, plan="interval")


def land(world: IntervalWorld, moment: datetime, number: int) -> None:
    os.utime(world.land(number), (moment.timestamp(), moment.timestamp()))


INTERVAL = (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC))
LANE = "interval-20260101T000000Z-20260102T000000Z"


def test_every_run_of_an_interval_pipeline_reads_its_interval(world: IntervalWorld) -> None:
    land(world, INTERVAL[0], 1)
    land(world, INTERVAL[1], 2)
    operator = InlineOperator(task_id="micro_batch", pipeline=world.pipeline, inline=InlineEngine())
    given = context(world.root, interval=INTERVAL)
    summary = operator.execute(given)
    assert summary["key"] == f"{LANE}/0"
    assert given["batch_label"] == f"batch {LANE}/0 · 1 row"
    assert summary == json.loads(json.dumps(summary))
    assert world.rows() == {f"{LANE}/0": [1]}
    operator.execute(context(world.root, interval=INTERVAL, clear_number=1))
    assert world.checkpoint.attempts.latest_epoch(world.work(interval_of(given)).key) == 2
    with pytest.raises(AirflowSkipException, match=rf"has had its batch of .*{LANE}/0 read it\. Data that came after"):
        operator.execute(context(world.root, number=2, interval=INTERVAL))
    with pytest.raises(AirflowSkipException, match=r"no unread data in the data interval .2025-12-31"):
        operator.execute(context(world.root, number=3, interval=(datetime(2025, 12, 31, tzinfo=UTC), INTERVAL[0])))
    with pytest.raises(IntervalError, match="logical date"):
        operator.execute(context(world.root, number=4, interval=None))


def test_a_clear_replays_the_interval_of_its_run_though_the_pipeline_reads_what_is_new_by_now(
    world: IntervalWorld,
) -> None:
    land(world, INTERVAL[0], 1)
    engine = InlineEngine()
    InlineOperator(task_id="micro_batch", pipeline=world.pipeline, inline=engine).execute(context(world.root))
    world.options["plan"] = "live"
    operator = InlineOperator(task_id="micro_batch", pipeline=world.pipeline, inline=engine)
    cleared = context(world.root, clear_number=1, try_number=2)
    sensor = NewDataSensor(task_id="new_data", pipeline=world.pipeline, deferrable=False)
    fired = sensor.poke(context(world.root, task_id="new_data", clear_number=1))
    assert (operator.execute(cleared)["key"], fired) == (f"{LANE}/0", True)
    assert len(engine.jobs) == 2
    land(world, INTERVAL[1], 2)
    assert operator.execute(context(world.root, number=2))["key"] == "live/0"


def test_a_clear_of_a_run_of_a_partition_replays_what_the_run_has_made_and_else_what_its_partition_has(
    tmp_path: Path,
) -> None:
    """A backfill had made a batch of the partition before."""
    transform_file(tmp_path)
    world = IntervalWorld(tmp_path)
    timetable = CronPartitionTimetable("@daily", timezone="UTC")

    def run(number: int, **given: Any) -> Any:
        task = InlineOperator(task_id="micro_batch", pipeline=world.pipeline, inline=InlineEngine())
        given = {"interval": None, "partition_date": INTERVAL[0], "timetable": timetable, **given}
        return task.execute(context(tmp_path, number=number, **given))["key"]

    land(world, INTERVAL[0], 1)
    assert run(1, run_type="backfill") == f"{LANE}/0"
    land(world, INTERVAL[1], 2)
    assert run(2) == "live/0"
    land(world, INTERVAL[1], 3)
    assert run(4) == "live/1"
    assert run(2, clear_number=1, try_number=2) == "live/0"
    assert run(3, clear_number=1, try_number=2) == f"{LANE}/0"
    assert world.ids() == [1, 2, 3]


def test_a_retried_sensor_does_not_fire_for_what_a_backfill_has_made_of_its_partition(tmp_path: Path) -> None:
    """The triggerer cannot tell a retry from a clear: a worker can. The task behind would skip."""
    transform_file(tmp_path)
    world = IntervalWorld(tmp_path)
    timetable = CronPartitionTimetable("@daily", timezone="UTC")
    given: dict[str, Any] = {"interval": None, "partition_date": INTERVAL[0], "timetable": timetable}
    land(world, INTERVAL[0], 1)
    task = InlineOperator(task_id="micro_batch", pipeline=world.pipeline, inline=InlineEngine())
    assert task.execute(context(tmp_path, run_type="backfill", **given))["key"] == f"{LANE}/0"
    again = context(tmp_path, number=2, try_number=2, **given)
    told = event(triggered(world, again))
    assert told.payload["status"] == "not importable"
    again["ti"].get_first_reschedule_date = lambda context: None
    sensors = [NewDataSensor(task_id="new_data", pipeline=world.pipeline, deferrable=True) for _ in range(2)]
    with pytest.raises(AirflowRescheduleException):
        sensors[0].execute_complete(again, told.payload)
    again["dag_run"].clear_number = 1
    sensors[1].execute_complete(again, told.payload)


def test_what_a_rewound_interval_has_taken_is_read_by_the_backfill_that_is_named_also_once_the_plan_is_live(
    world: IntervalWorld,
) -> None:
    """Its run, cleared, has no batch that it has planned, and reads what is new."""
    land(world, INTERVAL[0], 1)
    InlineOperator(task_id="micro_batch", pipeline=world.pipeline, inline=InlineEngine()).execute(context(world.root))
    applied(world, rewind(-1, lane=LANE))
    world.options["plan"] = "live"
    operator = InlineOperator(task_id="micro_batch", pipeline=world.pipeline, inline=InlineEngine())
    cleared = context(world.root, clear_number=1, try_number=2)
    with pytest.raises(AirflowSkipException):
        operator.execute(cleared)
    [finding] = find_without_batch(world.checkpoint)
    assert "backfill exactly that interval. Its own run" in finding.repair
    assert operator.execute(context(world.root, number=2, run_type="backfill"))["key"] == f"{LANE}/0"
    assert world.ids() == [1]


def test_what_an_interval_has_planned_is_run_by_a_clear_of_its_run_also_once_the_plan_is_live(
    world: IntervalWorld,
) -> None:
    land(world, INTERVAL[0], 1)
    broken = InlineEngine(before_stage=ends_with_the_engine)
    with pytest.raises(EngineError):
        InlineOperator(task_id="micro_batch", pipeline=world.pipeline, inline=broken).execute(context(world.root))
    world.options["plan"] = "live"
    world.expire_leases()
    [finding] = find_left(world.checkpoint)
    assert "Clear task 'micro_batch' of run 'run-1'" in finding.repair
    assert "plan=" not in finding.repair
    assert "A run 'backfill__" in finding.repair
    operator = InlineOperator(task_id="micro_batch", pipeline=world.pipeline, inline=InlineEngine())
    assert operator.execute(context(world.root, clear_number=1, try_number=2))["key"] == f"{LANE}/0"
    assert find_left(world.checkpoint) == []


def test_a_backfill_over_a_run_of_a_drain_replays_all_that_its_slots_have_made(tmp_path: Path) -> None:
    """Airflow clears the run, and makes it one of the backfill."""
    transform_file(tmp_path)
    world = IntervalWorld(tmp_path)
    engine = InlineEngine()

    def slot(number: int, **given: Any) -> Any:
        operator = InlineSlot(task_id="micro_batch", pipeline=world.pipeline, slot=number, inline=engine)
        return operator.execute(context(tmp_path, map_index=number, interval=INTERVAL, **given))

    for number in range(3):
        land(world, INTERVAL[0] + timedelta(minutes=number), number)
        assert slot(number)["key"] == f"live/{number}"
    for number in range(3):
        assert slot(number, run_type="backfill", clear_number=1)["key"] == f"live/{number}"
    assert len(engine.jobs) == 6
    with pytest.raises(AirflowSkipException, match="slot 0 makes"):
        slot(3, run_type="backfill", clear_number=1)


def test_the_steps_work_on_the_lane(world: IntervalWorld) -> None:
    land(world, INTERVAL[0], 1)
    plan = PlanMicroBatchOperator(task_id="plan", pipeline=world.pipeline)
    key = plan.execute(context(world.root, task_id="plan", interval=INTERVAL))
    assert key == f"{LANE}/0"
    submit = InlineSubmit(task_id="submit", pipeline=world.pipeline, key=key, inline=InlineEngine())
    submitted = submit.execute(context(world.root, task_id="submit", interval=INTERVAL))
    commit = CommitMicroBatchOperator(task_id="commit", pipeline=world.pipeline, submitted=submitted)
    assert commit.execute(context(world.root, task_id="commit", interval=INTERVAL))["state"] == "committed"
    assert world.rows() == {f"{LANE}/0": [1]}


def test_the_steps_refuse_several_batches_and_skip_none(tmp_path: Path) -> None:
    transform_file(tmp_path)
    world = IntervalWorld(tmp_path, on_overlap="replay")
    plan = PlanMicroBatchOperator(task_id="plan", pipeline=world.pipeline)
    with pytest.raises(AirflowSkipException, match="no unread data"):
        plan.execute(context(world.root, run_type="backfill", interval=INTERVAL))
    for number in (1, 2):
        land(world, INTERVAL[0], number)
        world.run(number)
    with pytest.raises(IntervalError, match="live/0, live/1 are to be run for one data interval"):
        plan.execute(context(world.root, number=9, run_type="backfill", interval=INTERVAL))


def test_so_does_its_trigger(world: IntervalWorld) -> None:
    now = datetime.now(tz=UTC)
    waiting = context(world.root, interval=(now - timedelta(hours=1), now + timedelta(hours=1)))
    assert not fires(triggered(world, waiting))
    assert fires(triggered(world, context(world.root, interval=INTERVAL)))
    told = event(triggered(world, context(world.root, interval=None)))
    assert "logical date" in told.payload["reason"]
    deferred = NewDataTrigger(
        pipeline=world.pipeline.to_dict(),
        poll_interval=0.05,
        run=dataclasses.asdict(identity_of(waiting)),
        interval=dataclasses.asdict(interval_of(waiting)),
    )
    assert not fires(NewDataTrigger(**json.loads(json.dumps(deferred.serialize()[1]))))


def test_the_sensor_waits_for_the_end_of_the_interval(world: IntervalWorld) -> None:
    sensor = NewDataSensor(task_id="new_data", pipeline=world.pipeline)
    now = datetime.now(tz=UTC)
    land(world, now, 1)
    assert not sensor.poke(context(world.root, interval=(now - timedelta(hours=1), now + timedelta(hours=1))))
    assert sensor.poke(context(world.root, interval=(now - timedelta(hours=1), now + timedelta(microseconds=1000))))
    operator = InlineOperator(task_id="micro_batch", pipeline=world.pipeline, inline=InlineEngine())
    with pytest.raises(IntervalError, match="is not over, and what comes later would be left out"):
        operator.execute(context(world.root, interval=(now - timedelta(hours=1), now + timedelta(hours=1))))


HOUR = timedelta(hours=1)


def hourly(world: IntervalWorld, hour: int, **given: Any) -> None:
    """The run of the hour that begins at this hour of New Year's Day."""
    start = INTERVAL[0] + hour * HOUR
    task = InlineOperator(task_id="micro_batch", pipeline=world.pipeline, inline=InlineEngine())
    try:
        task.execute(context(world.root, number=hour, interval=(start, start + HOUR), **given))
    except AirflowSkipException:
        return


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({}, [1, 2, 4]),
        ({"others": 1}, [1, 4]),
        ({"run_type": "backfill"}, [1, 4]),
        ({"run_type": "manual"}, [1, 4]),
    ],
    ids=["scheduled, alone", "another one is on its way", "of a backfill", "by hand"],
)
def test_lookback_takes_what_no_run_was_made_for_once_none_is_on_its_way(
    world: IntervalWorld, given: dict[str, Any], read: list[int]
) -> None:
    """The DAG was paused in hours 2 and 3, or its schedule was changed; hour 2 lies before the lookback of hour 4."""
    world.options["lookback"] = 3600
    for number in (1, 3, 4):
        land(world, INTERVAL[0] + (number + 0.5) * HOUR, {1: 1, 3: 2, 4: 4}[number])
    land(world, INTERVAL[0] + 2.5 * HOUR, 9)
    hourly(world, 1)
    hourly(world, 4, **given)
    assert world.ids() == read


def test_where_airflow_cannot_be_asked_another_run_may_be_on_its_way(world: IntervalWorld) -> None:
    world.options["lookback"] = 3600
    land(world, INTERVAL[0] + 3.5 * HOUR, 3)

    def refused(**_: Any) -> int:
        raise AirflowRuntimeError(ErrorResponse())

    given = context(world.root, interval=(INTERVAL[0] + 4 * HOUR, INTERVAL[0] + 5 * HOUR))
    given["ti"].get_dr_count = refused
    task = InlineOperator(task_id="micro_batch", pipeline=world.pipeline, inline=InlineEngine())
    with pytest.raises(AirflowSkipException, match="no unread data"):
        task.execute(given)


def ends_with_the_engine(_: Any) -> None:
    raise EngineError("the cluster is away")


@pytest.mark.parametrize("of", ["a tick", "a partition"])
def test_a_run_whose_schedule_was_changed_goes_on_with_the_batch_that_it_has_planned(
    world: IntervalWorld, of: str
) -> None:
    """Hourly, then every two hours: by the schedule of now the run's interval is another one."""
    tick = INTERVAL[0] + 4 * HOUR
    land(world, tick - 0.5 * HOUR, 1)
    land(world, tick + 0.5 * HOUR, 2)

    def of_schedule(cron: str, **given: Any) -> Any:
        if of == "a tick":
            return context(
                world.root, interval=(tick, tick), timetable=CronTriggerTimetable(cron, timezone="UTC"), **given
            )
        timetable = CronPartitionTimetable(cron, timezone="UTC", run_offset=-1)
        return context(world.root, interval=None, partition_date=tick, timetable=timetable, **given)

    def run(cron: str, engine: InlineEngine, **given: Any) -> Any:
        task = InlineOperator(task_id="micro_batch", pipeline=world.pipeline, inline=engine)
        return task.execute(of_schedule(cron, **given))

    with pytest.raises(EngineError):
        run("0 * * * *", InlineEngine(before_stage=ends_with_the_engine))
    [key] = [world.work(interval_of(of_schedule("0 * * * *"))).key]
    # That of nobody: it ends before it begins.
    (world.root / "checkpoint" / "lanes" / "interval-20260101T040000Z-20260101T040000Z" / "offsets").mkdir(parents=True)
    assert run("0 */2 * * *", InlineEngine(), try_number=2)["key"] == str(key)
    row = 1 if of == "a tick" else 2
    assert world.rows() == {str(key): [row]}
    replaced = InlineEngine(transform=lambda _: [{"id": 99}])
    assert run("0 */2 * * *", replaced, clear_number=1)["key"] == str(key)
    assert world.rows() == {str(key): [99]}


def test_the_sensor_of_a_run_whose_schedule_was_changed_waits_for_no_other_interval(world: IntervalWorld) -> None:
    """It was hourly, and is yearly now: a clear would stand still until New Year."""
    tick = datetime.now(tz=UTC).replace(minute=0, second=0, microsecond=0) - 2 * HOUR
    land(world, tick, 1)

    def of_schedule(cron: str, **given: Any) -> Any:
        timetable = CronPartitionTimetable(cron, timezone="UTC", run_offset=-1)
        return context(world.root, interval=None, partition_date=tick, timetable=timetable, **given)

    yearly = of_schedule("@yearly", clear_number=1)
    sensor = NewDataSensor(task_id="new_data", pipeline=world.pipeline)
    assert not sensor.poke(yearly)
    task = InlineOperator(task_id="micro_batch", pipeline=world.pipeline, inline=InlineEngine())
    task.execute(of_schedule("@hourly"))
    assert NewDataSensor(task_id="new_data", pipeline=world.pipeline).poke(yearly)


@pytest.mark.slow
@pytest.mark.parametrize("cron", ["30 2 * * *", "0 2 * * *", "*/30 2 * * *", "0 */2 * * *", "0 * * * *", "@daily"])
@pytest.mark.parametrize(
    ("timezone", "month"),
    [
        ("Europe/Berlin", 3), ("Europe/Berlin", 10), ("America/Santiago", 4), ("America/Santiago", 9),
        ("Australia/Lord_Howe", 4), ("Australia/Lord_Howe", 10),
    ],
)  # fmt: skip
def test_the_intervals_of_a_schedules_ticks_follow_each_other_when_clocks_change(
    cron: str, timezone: str, month: int
) -> None:
    """An hour that is skipped has ticks that no clock shows: each is once in the schedule, or not at all."""
    timetable = CronTriggerTimetable(cron, timezone=timezone)
    core, last = coerce_to_core_timetable(timetable), None
    since, until = (coerce_datetime(datetime(2026, month + n, 1, tzinfo=UTC)) for n in (0, 1))
    restriction = TimeRestriction(earliest=since, latest=until, catchup=True)
    before: datetime | None = None
    while (info := core.next_dagrun_info(last_automated_data_interval=last, restriction=restriction)) is not None:
        last = info.data_interval
        assert last.start == last.end
        # The two days around a change are enough, and a change is on a Sunday.
        if before is not None and (last.end.weekday() in (0, 6) or cron.startswith("@")):
            interval = interval_of(context(Path(), interval=(last.start, last.end), timetable=timetable))
            assert (interval.start, interval.end) == (before, last.end)
        before = last.end


def test_a_partition_at_a_tick_that_no_clock_shows_reaches_to_the_next_one() -> None:
    timetable = CronPartitionTimetable("30 2 * * *", timezone="Europe/Berlin", run_offset=-1)
    tick = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    given = context(Path(), interval=None, partition_date=tick, timetable=timetable)
    assert str(interval_of(given)) == "[2026-03-29T01:30:00Z, 2026-03-30T00:30:00Z)"


@pytest.mark.parametrize(
    ("timetable", "gap"),
    [
        (CronTriggerTimetable("0 * * * *", timezone="UTC"), HOUR),
        (CronDataIntervalTimetable("0 * * * *", timezone="UTC"), HOUR),
        (CronDataIntervalTimetable("@daily", timezone="UTC"), timedelta(days=1)),
        (CronTriggerTimetable("@daily", timezone="Europe/Berlin"), timedelta(days=1)),
    ],
)
def test_the_backfill_that_is_named_makes_the_runs_that_are_missing(timetable: Any, gap: timedelta) -> None:
    """Whichever end of its interval a run is named by."""
    first = datetime(2026, 1, 5, 3, 20, 30, tzinfo=UTC)
    unread = Unread.of([round((first + n * gap).timestamp() * 1000) for n in range(3)])
    assert unread is not None
    limit = round((first + 9 * gap).timestamp() * 1000)
    way = way_on(unread, run=None, limit_ms=limit, length_ms=round(gap.total_seconds() * 1000))
    dates = re.search("--from-date (.*?) --to-date (.*?)`", way)
    assert dates is not None
    since, until = (coerce_datetime(datetime.fromisoformat(date)) for date in dates.groups())
    core = coerce_to_core_timetable(timetable)
    restriction = TimeRestriction(earliest=since, latest=until, catchup=True)
    intervals, last = list[Any](), None
    while (info := core.next_dagrun_info(last_automated_data_interval=last, restriction=restriction)) is not None:
        last = info.data_interval
        of_run = context(Path(), interval=(last.start, last.end), timetable=timetable)
        intervals.append(interval_of(of_run))
    for number in range(3):
        assert any(one.takes((first + number * gap).timestamp() * 1000) for one in intervals), way
    assert len(intervals) <= 6
