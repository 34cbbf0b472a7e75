"""Everything in docs/events.md that can be made to happen on one machine, on a real scheduler: no event leaves a stage
behind or doubles a row, and the hooks of each attempt are told what the page says.

The stories run beside each other, since most of what they do is to wait for Airflow. The engine needs no JVM: what is
under test is who is called when a process dies, and Spark has tests of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import psutil
import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.listeners.events import EVENTS
from demo.local_airflow import LocalAirflow
from tests.scheduler.event_world import SECONDS, Story
from tests.support.hooks import lines
from tests.support.postgres import Postgres

pytestmark = [pytest.mark.airflow]

ROOT = Path(__file__).resolve().parents[2]

Play = Callable[[Story], None]
STORIES: dict[str, tuple[Play, tuple[str, ...]]] = {}
"""By DAG: what is done to it, and the rows of the table that it makes happen."""


def story(*events: str) -> Callable[[Play], Play]:
    """Register a function as the story of the DAG of the same name."""

    def register(play: Play) -> Play:
        STORIES[play.__name__] = (play, events)
        return play

    return register


def begin(told: Story) -> tuple[str, int]:
    """A run whose attempt is in the middle of its work: its id, and the id of its process."""
    told.land(1)
    return told.trigger(), told.held()


def wait_for_exit(told: Story, pid: int) -> None:
    told.airflow.wait_for(lambda: not psutil.pid_exists(pid), timeout=SECONDS, what=f"the end of process {pid}")


def finish(told: Story, first: str) -> None:
    """The next run takes the batch up."""
    told.run_to_success()
    told.janitor()
    told.check(first, "finished")


@story("success", "AirflowSkipException")
def success(told: Story) -> None:
    told.land(1)
    (told.folder / "diary.fails").write_text("diary finished\nonce")
    told.run_to_success()
    # The hook failed when the commit told it; the listener in the task's process told it again, and no janitor.
    assert lines(told.folder / "diary")[1:] == ["diary finished live/0 1"] * 2
    assert told.checkpoint.leases.unfinished() == []
    idle = told.trigger()
    told.wait_for_state(idle, "skipped")
    told.janitor()
    told.check("finished")


@story("defer, resume", "deferred; a user marks it failed", "deferred; a user clears it")
def deferred(told: Story) -> None:
    assert list(told.landing.iterdir()) == []
    run_id = told.trigger()
    told.wait_for_state(run_id, "deferred", task_id="new_data")
    told.write("PATCH", told.task_path(run_id, "new_data"), {"new_state": "failed"})
    assert told.airflow.wait_for_run(told.name, run_id, timeout=SECONDS) == "failed"

    run_id = told.trigger()
    told.wait_for_state(run_id, "deferred", task_id="new_data")
    before = told.airflow.task_instances(told.name, run_id)["new_data"]["id"]
    told.clear(run_id)
    told.airflow.wait_for(
        lambda: told.airflow.task_instances(told.name, run_id)["new_data"]["id"] != before,
        timeout=SECONDS,
        what="the cleared sensor's next try",
    )
    told.wait_for_state(run_id, "deferred", task_id="new_data")
    assert not (told.folder / "diary").exists()
    told.land(1)
    assert told.airflow.wait_for_run(told.name, run_id, timeout=SECONDS) == "success"
    assert told.reasons() == []
    told.janitor()
    told.check("finished")


@story("exception, retries left")
def failed_once(told: Story) -> None:
    told.land(1)
    told.run_to_success()
    told.janitor()
    told.check("failed", "finished")


@story("final failure")
def failed(told: Story) -> None:
    told.land(1)
    assert told.airflow.wait_for_run(told.name, told.trigger(), timeout=SECONDS) == "failed"
    finish(told, "failed")


@story("kill -9 of the task, no retries")
def killed(told: Story) -> None:
    run_id, pid = begin(told)
    os.kill(pid, signal.SIGKILL)
    assert told.airflow.wait_for_run(told.name, run_id, timeout=SECONDS) == "failed"
    told.wait_for_mark("failed: the DAG run failed")
    told.janitor()
    end = told.checkpoint.attempts.ended(BatchKey(LIVE, 0), 1)
    assert end is not None
    assert end.error is not None
    assert "found dead by the janitor" in end.error
    assert "Airflow: the DAG run failed" in end.error
    finish(told, "failed")


@story("kill -9 of the task, retries left")
def killed_retried(told: Story) -> None:
    run_id, pid = begin(told)
    os.kill(pid, signal.SIGKILL)
    assert told.airflow.wait_for_run(told.name, run_id, timeout=SECONDS) == "success"
    told.wait_for_mark("failed: ")
    told.janitor()
    told.check("failed", "finished")


@story("kill -9 of the supervisor")
def orphaned(told: Story) -> None:
    run_id, pid = begin(told)
    os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)
    assert told.airflow.wait_for_run(told.name, run_id, timeout=SECONDS) == "success"
    assert psutil.pid_exists(pid), "the task runs on"
    told.open_gate()
    wait_for_exit(told, pid)
    told.janitor()
    told.check("failed", "finished")


@story("a user marks a running task failed or success")
def marked_failed(told: Story) -> None:
    run_id, pid = begin(told)
    told.write("PATCH", told.task_path(run_id), {"new_state": "failed"})
    told.wait_for_mark("canceled: a user marked the task as failed")
    wait_for_exit(told, pid)
    finish(told, "canceled")


@story("a user marks a running task failed or success")
def marked_success(told: Story) -> None:
    run_id, pid = begin(told)
    told.write("PATCH", told.task_path(run_id), {"new_state": "success"})
    told.wait_for_mark("canceled: a user marked the task as success")
    wait_for_exit(told, pid)
    finish(told, "canceled")


@story("a user clears a running task")
def cleared(told: Story) -> None:
    run_id, _ = begin(told)
    told.clear(run_id)
    told.held(2)
    assert told.airflow.wait_for_run(told.name, run_id, timeout=SECONDS) == "success"
    told.janitor()
    told.check("canceled", "finished")


@story("a user marks the run failed")
def run_failed(told: Story) -> None:
    run_id, pid = begin(told)
    told.write("PATCH", f"dags/{told.name}/dagRuns/{run_id}", {"state": "failed"})
    told.wait_for_mark("canceled: a user marked the task as failed")
    told.wait_for_mark("canceled: a user marked the run as failed")
    wait_for_exit(told, pid)
    finish(told, "canceled")


@story("execution_timeout")
def timed_out(told: Story) -> None:
    run_id, _ = begin(told)
    assert told.airflow.wait_for_run(told.name, run_id, timeout=SECONDS) == "failed"
    finish(told, "failed")


@story("dagrun_timeout")
def run_timed_out(told: Story) -> None:
    run_id, pid = begin(told)
    assert told.airflow.wait_for_run(told.name, run_id, timeout=SECONDS) == "failed"
    told.wait_for_mark("canceled: the DAG run failed: timed_out")
    wait_for_exit(told, pid)
    finish(told, "canceled")


@story("task instance deleted by REST")
def deleted(told: Story) -> None:
    run_id, pid = begin(told)
    told.write("DELETE", told.task_path(run_id))
    wait_for_exit(told, pid)
    # Airflow may call the run a success since no task is left in it, or take the dying task's report for the new one's
    # and call that one failed, before it has begun or while it runs and commits. Then the next run takes the batch up.
    told.airflow.wait_for_run(told.name, run_id, timeout=SECONDS)
    told.run_until_committed()
    told.janitor()
    told.check(*[{"canceled", "failed"}] * (len(told.told()) - 1), "finished")


@story("SIGTERM to the task only")
def terminated(told: Story) -> None:
    run_id, pid = begin(told)
    os.kill(pid, signal.SIGTERM)
    assert told.airflow.wait_for_run(told.name, run_id, timeout=SECONDS) == "failed"
    finish(told, "canceled")


TO_ALL = (
    "kill -9 of the scheduler, restart",
    "SIGTERM to the scheduler, a second scheduler",
    "API server dead",
)
"""What happens to every task there is, so it comes when the others are done."""


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, database_server: Postgres) -> Iterator[LocalAirflow]:
    """Airflow, quick to see that a task, or the API server, gives no sign of life."""
    home = tmp_path_factory.mktemp("events")
    (home / "dags").mkdir()
    shutil.copy(Path(__file__).with_name("event_dags.py"), home / "dags")
    env = {
        "MICROBATCH_HOME": str(home),
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
        "AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS": "4",
        "AIRFLOW__WORKERS__EXECUTION_API_RETRY_WAIT_MAX": "2",
    }
    with LocalAirflow(
        home=home / "airflow",
        dags=home / "dags",
        env=env,
        unpaused=True,
        parallelism=16,
        database=database_server.database("events"),
    ) as running:
        yield running
    assert running.processes() == []


def story_of(airflow: LocalAirflow, name: str) -> Story:
    return Story(home=airflow.home.parent, airflow=airflow, name=name)


@pytest.fixture(scope="module")
def playing(airflow: LocalAirflow) -> Iterator[Mapping[str, Future[None]]]:
    """All stories, each in a thread of its own, as many at once as two cores can bear; the longest begin first."""
    airflow.wait_for(
        lambda: {dag["dag_id"] for dag in airflow.api("GET", "dags")["dags"]} >= set(STORIES),
        timeout=SECONDS,
        what="the DAGs",
    )
    longest_first = sorted(STORIES, key=lambda name: name not in ("run_timed_out", "orphaned", "deferred"))
    with ThreadPoolExecutor(5) as pool:
        yield {name: pool.submit(STORIES[name][0], story_of(airflow, name)) for name in longest_first}


@pytest.mark.parametrize("name", list(STORIES))
def test_no_orphan_and_no_doubled_row_after(name: str, playing: Mapping[str, Future[None]]) -> None:
    playing[name].result()


def test_the_task_goes_on_when_the_scheduler_is_killed(
    airflow: LocalAirflow, playing: Mapping[str, Future[None]]
) -> None:
    wait(playing.values())
    told = story_of(airflow, "scheduler_killed")
    run_id, _ = begin(told)
    airflow.kill_component("scheduler")
    airflow.start_component("scheduler")
    told.open_gate()
    assert airflow.wait_for_run(told.name, run_id, timeout=SECONDS) == "success"
    told.janitor()
    told.check("finished")


def test_two_tries_overlap_when_a_second_scheduler_resets_the_task(
    airflow: LocalAirflow, playing: Mapping[str, Future[None]]
) -> None:
    wait(playing.values())
    told = story_of(airflow, "second_scheduler")
    run_id, pid = begin(told)
    airflow.kill_component("scheduler", signal.SIGTERM)
    assert psutil.pid_exists(pid), "the task runs on"
    airflow.start_component("scheduler")
    told.held(2)
    told.airflow.wait_for_run(told.name, run_id, timeout=SECONDS)
    told.open_gate()
    wait_for_exit(told, pid)
    told.wait_for_end(2)
    told.janitor()
    told.check({"canceled", "failed"}, "finished")


def test_a_task_without_an_api_server_is_stopped_and_retried(
    airflow: LocalAirflow, playing: Mapping[str, Future[None]]
) -> None:
    wait(playing.values())
    told = story_of(airflow, "api_server_killed")
    run_id, pid = begin(told)
    airflow.kill_component("api-server")
    wait_for_exit(told, pid)
    airflow.start_component("api-server")
    airflow.wait_for(airflow.healthy, timeout=SECONDS, what="a healthy Airflow")
    assert airflow.wait_for_run(told.name, run_id, timeout=SECONDS) == "success"
    told.janitor()
    told.check("canceled", "finished")


def test_every_row_of_the_table_is_made_to_happen() -> None:
    made = {event for _, events in STORIES.values() for event in events}
    assert made | set(TO_ALL) == {row.event for row in EVENTS}
