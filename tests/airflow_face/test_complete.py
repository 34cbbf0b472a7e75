"""What sensors and their triggers do where there will never be a batch."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSkipException
from airflow.triggers.base import TaskSkippedEvent

from airflow_provider_microbatch import FileSink, FileSource
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.execution.fire import FireDecision
from airflow_provider_microbatch.graph import JobGraph
from airflow_provider_microbatch.operators.job import micro_batch_job
from airflow_provider_microbatch.sensors.new_data import NewDataSensor
from airflow_provider_microbatch.task_context import complete as of_complete
from airflow_provider_microbatch.task_context.complete import FIELD, XCOM, has_rested, rest_seconds
from airflow_provider_microbatch.triggers.job_data import JobDataTrigger
from tests.airflow_face.support import context
from tests.airflow_face.test_new_data import event, triggered
from tests.execution.test_complete import offline
from tests.execution.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """It has read all that there will be."""
    made = offline(tmp_path)
    made.land(0)
    made.run(0)
    return made


def continuous(schedule: str) -> DAG:
    return DAG("offline", schedule=schedule, start_date=datetime(2026, 1, 1), max_active_runs=1)


def test_a_trigger_that_ends_the_task_skips_it_and_says_so_to_the_scheduler(world: World) -> None:
    found = event(triggered(world))
    assert isinstance(found, TaskSkippedEvent)
    assert found.xcoms is not None
    assert found.xcoms[XCOM].startswith("complete: ")


def test_a_worker_skips_after_the_trigger_s_event(world: World) -> None:
    found = event(triggered(world, end_from_trigger=False))
    assert found.payload["status"] == "complete"
    sensor = NewDataSensor(task_id="new_data", pipeline=world.pipeline, when_complete="pause")
    given = context(world.root)
    pushed: dict[str, Any] = {}
    given["ti"].xcom_push = lambda key, value: pushed.update({key: value})
    with pytest.raises(AirflowSkipException, match="pipeline 'orders' is complete: all its sources are finished"):
        sensor.execute_complete(given, found.payload)
    assert list(pushed) == [XCOM]


def test_the_trigger_of_a_job_ends_too(world: World) -> None:
    trigger = triggered(world)
    job = JobDataTrigger(
        pipelines=[trigger.pipeline], poll_interval=0.05, retry_seconds=60, run={
            "dag_id": "d", "run_id": "r", "task_id": "t",
        },
    )  # fmt: skip
    assert event(JobDataTrigger(**job.serialize()[1])).payload["status"] == "complete"  # type: ignore[arg-type]


def test_in_a_dag_that_runs_all_the_time_the_sensor_stays_for_an_hour(world: World) -> None:
    with continuous("@continuous"):
        stays = NewDataSensor(task_id="new_data", pipeline=world.pipeline, deferrable=True, poke_interval=0.05)
        pauses = NewDataSensor(
            task_id="pauses", pipeline=world.pipeline, deferrable=True, poke_interval=0.05, when_complete="pause"
        )
    for sensor, seconds in ((stays, of_complete.REST_SECONDS), (pauses, 0.0)):
        assert sensor.start_trigger_args is not None
        assert (sensor.start_trigger_args.trigger_kwargs or {})["rest_seconds"] == seconds
    trigger = triggered(world)
    trigger.rest_seconds = of_complete.REST_SECONDS
    with pytest.raises(TimeoutError):
        event(trigger, timeout=0.5)


def test_how_long_is_rested() -> None:
    assert rest_seconds(continuous("@continuous"), "skip", timeout=600) == 300
    assert rest_seconds(continuous("@daily"), "skip", timeout=600) == 0
    assert rest_seconds(None, "skip", timeout=600) == 0
    complete, waits = FireDecision(fire=False, reason="", complete=True), FireDecision(fire=False, reason="")
    told = [has_rested(one, since_ms=0, now_ms=now, seconds=5) for one in (complete, waits) for now in (4999, 5000)]
    assert told == [False, True, False, False]


def test_only_who_wants_a_pause_is_known_to_the_scheduler_and_nonsense_is_refused(world: World) -> None:
    assert NewDataSensor.template_fields == (FIELD,)
    with pytest.raises(DefinitionError, match="when_complete is 'skip' or 'pause', not 'stop'"):
        NewDataSensor(task_id="new_data", pipeline=world.pipeline, when_complete="stop")
    with DAG("shop", schedule=None), JobGraph("shop", checkpoint="/data/checkpoints/shop") as shop:
        shop.sink("orders", shop.source("orders", FileSource("/a", schema="id long")), FileSink("/b"))
        with pytest.raises(DefinitionError, match="the sensor's, which wait=False leaves out"):
            micro_batch_job(shop, wait=False, when_complete="pause")
