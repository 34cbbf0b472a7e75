"""Pipelines that are batches per data interval from the start: ``plan="interval"``, and what may be written there."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import (
    DefinitionError,
    IntervalError,
    MaintenanceError,
    NothingInIntervalError,
    TransformError,
)
from airflow_provider_microbatch.execution.intervals import batch_of
from airflow_provider_microbatch.execution.left import find_left
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.open import OpenFileSource
from airflow_provider_microbatch.sources.intervals import Interval, IntervalSurvey
from tests.execution.intervals import DAY_MS, HOUR_MS, IntervalWorld, backfill_run, hour
from tests.execution.maintaining import applied, rewind
from tests.execution.world import CODE, run_identity
from tests.support.inline_engine import InlineEngine


def key(number: float) -> str:
    return str(batch_of(hour(number)))


def test_late_files_within_the_lookback_are_read_by_the_next_interval(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, plan="interval", lookback=3600)
    world.land_at(1.5, 1)
    world.backfill(hour(1), 1)
    world.land_at(1.7, 2)
    world.land_at(0.7, 9)
    world.land_at(2.5, 3)
    world.backfill(hour(2), 2)
    assert world.rows() == {key(1): [1], key(2): [2, 3]}


def test_lookback_reads_nothing_twice_and_blames_nobody(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, plan="interval", lookback=3600)
    world.land_at(1.5, 1)
    world.backfill(hour(1), 1)
    with pytest.raises(NothingInIntervalError, match="there is none"):
        world.backfill(hour(2), 2)
    assert world.ids() == [1]


def test_without_lookback_an_interval_has_its_own_files_only(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, plan="interval")
    for number in range(3):
        world.land_at(number, number)
    world.backfill(hour(1), 1)
    assert world.rows() == {key(1): [1]}


def test_the_same_interval_under_another_run_overlaps_with_itself(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, plan="interval")
    world.land_at(0, 1)
    world.backfill(hour(0), 1)
    with pytest.raises(NothingInIntervalError, match=f"batch {key(0)} read it"):
        world.backfill(hour(0), 2)
    world.options["on_overlap"] = "replay"
    engine = InlineEngine()
    world.backfill(hour(0), 2, engine)
    assert len(engine.jobs) == 1
    assert world.ids() == [1]


def test_it_is_not_planned_before_it_is_over(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, plan="interval")
    world.land_at(0.1, 1)
    world.clock = DAY_MS + HOUR_MS // 2
    before = world.files()
    assert not world.work(hour(0)).should_fire(backfill_run(1)).fire
    with pytest.raises(IntervalError, match="is not over, and what comes later would be left out"):
        world.backfill(hour(0), 1)
    assert world.files() == before
    world.clock = DAY_MS + HOUR_MS
    assert world.work(hour(0)).should_fire(backfill_run(1)).fire
    world.backfill(hour(0), 1)


def test_nor_before_its_files_are_old_enough(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, plan="interval")
    world.sources = {"orders": FileSource(str(world.landing()), schema="id long", min_file_age=600)}
    world.land_at(0.9, 1)
    world.clock = DAY_MS + HOUR_MS + 1
    assert "1 files in " in world.work(hour(0)).should_fire(backfill_run(1)).reason
    with pytest.raises(IntervalError, match="1 file"):
        world.backfill(hour(0), 1)
    world.clock = DAY_MS + 2 * HOUR_MS
    world.backfill(hour(0), 1)
    assert world.ids() == [1]


def test_nor_while_a_source_waits_for_what_nobody_sees_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, surveyed = IntervalWorld(tmp_path, plan="interval"), OpenFileSource.survey_interval
    world.land_at(0.5, 1)

    def waits(self: OpenFileSource, *asked: Any) -> IntervalSurvey:
        return dataclasses.replace(surveyed(self, *asked), waits="a transaction runs")

    with monkeypatch.context() as patched:
        patched.setattr(OpenFileSource, "survey_interval", waits)
        decision = world.work(hour(0)).should_fire(backfill_run(1))
        assert (decision.fire, decision.reason) == (False, "a transaction runs")
        with pytest.raises(IntervalError, match="a transaction runs, and what comes later would be left out"):
            world.backfill(hour(0), 1)
    world.backfill(hour(0), 1)
    assert world.ids() == [1]


@pytest.mark.parametrize(("mode", "whole"), [("interval", True), ("live", False)])
def test_a_source_is_told_whether_another_lane_reads_what_comes_behind_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, whole: bool
) -> None:
    world, planned, asked = IntervalWorld(tmp_path, plan=mode), OpenFileSource.plan_interval, list[bool]()
    world.land_at(0.5, 1)

    def plan(self: OpenFileSource, interval: Interval, held: Any) -> Any:
        asked.append(interval.whole)
        return planned(self, interval, held)

    monkeypatch.setattr(OpenFileSource, "plan_interval", plan)
    world.backfill(hour(0), 1)
    assert asked == [whole]


def test_the_sensor_fires_for_a_batch_to_finish_and_never_writes(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, plan="interval")
    world.land_at(0, 1)
    world.work(hour(0)).plan(backfill_run(1))
    before = world.files()
    assert world.work(hour(0)).should_fire(backfill_run(2)).reason == f"batch {key(0)} is planned"
    # With no data it fires too: none of the past will come, and the operator skips.
    assert world.work(hour(1)).should_fire(backfill_run(3)).fire
    assert world.files() == before


def test_a_limit_of_the_source_does_not_split_an_interval(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, plan="interval")
    world.sources = {"orders": FileSource(str(world.landing()), schema="id long", max_files=1, max_file_age=60)}
    for number in range(3):
        world.land_at(number / 4, number)
    world.backfill(hour(0), 1)
    assert world.rows() == {key(0): [0, 1, 2]}


def test_several_sources_share_the_batch(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, plan="interval", sources=("orders", "refunds"))
    world.land_at(0, 1)
    world.land_at(0, 5, source="refunds")
    world.land_at(1, 2)
    world.backfill(hour(0), 1)
    world.backfill(hour(1), 2)
    assert world.rows() == {key(0): [1, 5], key(1): [2]}


def test_a_source_without_a_clock_is_refused_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = IntervalWorld(tmp_path, plan="interval")
    world.land_at(0, 1)
    monkeypatch.setattr(OpenFileSource, "survey_interval", OpenSource.survey_interval)
    before = world.files()
    with pytest.raises(IntervalError, match=r"a OpenFileSource has no clock .* not be backfilled"):
        world.backfill(hour(0), 1)
    assert world.files() == before


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"plan": "hourly"}, "plan must be 'live' or 'interval', not 'hourly'"),
        ({"on_overlap": "both"}, "on_overlap must be 'skip' or 'replay', not 'both'"),
        ({"plan": "interval", "lookback": -1}, "lookback must be a number of seconds above 0"),
        ({"plan": "interval", "lookback": True}, "lookback must be a number of seconds above 0"),
        ({"plan": "interval", "lookback": "1h"}, "lookback must be a number of seconds above 0"),
        ({"lookback": 60}, "goes with plan='interval' only"),
    ],
)
def test_what_is_wrong_in_the_definition_is_said(tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        IntervalWorld(tmp_path, **wrong).pipeline  # noqa: B018


def test_a_definition_travels(tmp_path: Path) -> None:
    pipeline = IntervalWorld(tmp_path, plan="interval", lookback=60, on_overlap="replay").pipeline
    assert Pipeline.from_dict(pipeline.to_dict()) == pipeline


def test_an_empty_interval_is_no_interval() -> None:
    with pytest.raises(IntervalError, match="is empty"):
        Interval(start_ms=5, end_ms=5)


def test_what_was_planned_as_data_came_is_not_skipped_by_intervals(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path)
    world.land_at(0.5, 1)
    with pytest.raises(TransformError):
        world.run(0, InlineEngine(transform=lambda _: 1 / 0))  # type: ignore[arg-type, return-value]
    world.land_at(1.5, 2)
    world.options["plan"] = "interval"
    for number in range(2):
        with pytest.raises(IntervalError, match=r"batch live/0 was planned as data came[\s\S]*plan='live'"):
            world.backfill(hour(number), number + 5)
    world.options["plan"] = "live"
    world.run(1)
    world.options["plan"] = "interval"
    world.backfill(hour(1), 2)
    assert world.ids() == [1, 2]


def test_nor_is_what_a_rewound_live_batch_had_read(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path)
    world.land_at(0.5, 1)
    world.run(0)
    applied(world, rewind(-1))
    world.options["plan"] = "interval"
    with pytest.raises(IntervalError, match="for a batch that is no longer in the logs"):
        world.backfill(hour(0), 1)
    world.options["plan"] = "live"
    world.run(1)
    assert world.ids() == [1]


def test_check_names_an_intervals_batch_that_no_live_run_takes_up(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, plan="interval")
    world.land_at(0.5, 1)
    with pytest.raises(TransformError):
        world.backfill(hour(0), 1, InlineEngine(transform=lambda _: 1 / 0))  # type: ignore[arg-type, return-value]
    world.expire_leases()
    [finding] = find_left(world.checkpoint)
    assert key(0) in finding.message
    assert "'run-1'" in finding.repair
    world.backfill(hour(0), 1)
    assert find_left(world.checkpoint) == []


def test_check_says_nothing_of_batches_that_somebody_is_at_or_will_be(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path)
    world.land_at(0.5, 1)
    world.execution.plan(run_identity(0))
    world.land_at(1.5, 2)
    [planned] = world.work(hour(1)).plan(backfill_run(1))
    execution = world.work(hour(1)).execution(planned.key)
    attempt = execution.open_attempt(key=planned.key, run=backfill_run(1), code=CODE, engine=InlineEngine())
    assert find_left(world.checkpoint) == []
    world.expire_leases()
    assert find_left(world.checkpoint) != []
    execution.keep(attempt, seconds=60)
    assert find_left(world.checkpoint) == [], "its stage waits for audits"


def test_check_goes_on_where_a_lease_is_torn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = IntervalWorld(tmp_path, plan="interval")
    world.land_at(0.5, 1)
    with pytest.raises(TransformError):
        world.backfill(hour(0), 1, InlineEngine(transform=lambda _: 1 / 0))  # type: ignore[arg-type, return-value]
    world.checkpoint.leases.begin(BatchKey.parse(key(0)), 1, seconds=60)
    (world.root / "checkpoint/attempts" / key(0) / "1.end").unlink()
    for lease in (world.root / "checkpoint/leases").rglob("*-*-*-*"):
        if lease.is_file():
            lease.write_text("")
    assert main(["check", str(world.root / "checkpoint")]) in (0, 1)
    assert "checks" not in capsys.readouterr().err


def test_a_lane_is_one_whose_interval_begins_between_two_seconds(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path)
    world.land_at(0.5, 1)
    between = Interval(start_ms=hour(0).start_ms + 123, end_ms=hour(0).end_ms + 123)
    (planned,) = world.work(between).plan(backfill_run(1))
    assert "." in planned.key.lane
    execution = world.work(between).execution(planned.key)
    execution.open_attempt(key=planned.key, run=backfill_run(1), code=CODE, engine=InlineEngine())
    assert world.checkpoint.lanes() == ["live", planned.key.lane]
    assert world.checkpoint.leases.unfinished() == [(planned.key, 1)]
    with pytest.raises(MaintenanceError, match="in use"):
        applied(world, rewind(-1, lane=planned.key.lane))
    world.expire_leases()
    assert world.janitor().problems == []
    assert world.checkpoint.leases.unfinished() == []
    assert main(["check", world.pipeline.checkpoint]) == 1, "a batch is planned, and nobody is at it"


def test_the_definition_of_an_interval_stays_while_the_live_lane_lets_go_of_others(tmp_path: Path) -> None:
    """An interval's batch is kept for good, whatever the pipeline said of retention when it was run."""
    world = IntervalWorld(tmp_path)
    definitions = world.checkpoint.definitions
    world.land_at(0.5, 0)
    world.backfill(hour(0), 0)
    (of_interval,) = definitions.names()
    world.options = {"min_batches_to_retain": 2}
    world.land(1)
    world.run(1)
    (old,) = set(definitions.names()) - {of_interval}
    world.options["set_aside_after"] = 2
    for number in (2, 3, 4):
        world.land(number)
        world.run(number)
    assert world.janitor().of("retention applied") == [f"pipeline definition {old}"]
    assert of_interval in definitions.names()
    assert len(definitions.names()) == 2
