"""JobDataSensor: when a job's run begins."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sensors.job_data import JobDataSensor
from airflow_provider_microbatch.triggers import job_data
from tests.airflow_face.support import context
from tests.execution.world import World
from tests.graph.test_upkeep_of_jobs import failing


def look(world: World, *, began: timedelta | None = None, **given: Any) -> bool:
    """One look, in a process of its own, as a sensor that is rescheduled takes it.

    :param began: how long ago the first one was.
    """
    sensor = JobDataSensor(task_id="new_data", pipelines=[world.pipeline])
    told = context(world.root, task_id="new_data", **given)
    if began is not None:
        told["task_reschedule_count"] = 3
        told["ti"].get_first_reschedule_date = lambda context: datetime.now(UTC) - began
    return sensor.poke(told)


def test_a_pipeline_that_cannot_be_asked_is_heard_of_though_each_look_is_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise SourceError("the landing folder is away")

    monkeypatch.setattr(job_data, "decide", away)
    world = World(tmp_path)
    assert not look(world)
    assert not look(world, began=timedelta(seconds=50))
    assert look(world, began=timedelta(seconds=70))


def test_a_cleared_run_waits_for_no_pause(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.land(1)
    failing(world)
    assert not look(world, number=0)
    assert look(world, number=0, clear_number=1)
