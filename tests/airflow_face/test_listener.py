"""The listener, called as Airflow's processes call it. What they really call is seen below ``tests/scheduler``."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.marks import Mark
from airflow_provider_microbatch.listeners import events, listener
from airflow_provider_microbatch.listeners.marking import MARKING, Marking
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.operators.steps import SubmitMicroBatchOperator
from tests.execution.world import World, run_identity
from tests.support.hooks import Diary, lines

pytestmark = pytest.mark.airflow

ROOT = Path(__file__).resolve().parents[2]
MANUALLY = "TaskInstance's state was manually set to `failed`."


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    return tmp_path / "diary"


@pytest.fixture
def world(tmp_path: Path, diary: Path) -> World:
    world = World(tmp_path, hooks=(Diary(str(diary)),))
    world.land(1)
    world.staged()
    return world


def in_the_task(world: World, task: Any = None) -> Any:
    """The task instance as its own process has it."""
    run = run_identity(0)
    return SimpleNamespace(
        id=run.ti_id, task=task or MicroBatchOperator(task_id="micro_batch", pipeline=world.pipeline)
    )  # fmt: skip


def elsewhere(world: World, **changes: Any) -> Any:
    """The task instance as scheduler and API server have it: with a task that is data."""
    run = run_identity(0)
    values = {
        "id": run.ti_id,
        "dag_id": run.dag_id,
        "run_id": run.run_id,
        "task_id": run.task_id,
        "map_index": -1,
        "try_number": 1,
        "state": "failed",
        "task": SimpleNamespace(**{listener.FIELD: world.pipeline.checkpoint}),
    }
    return SimpleNamespace(**{**values, **changes})


def run_of(*tasks: Any) -> Any:
    dag = SimpleNamespace(task_dict={str(number): task for number, task in enumerate(tasks)})
    return SimpleNamespace(dag_id="orders", run_id="run-0", dag=dag)


def ended(world: World) -> list[str]:
    """What the janitor says when all marks are written and the lease has run out."""
    MARKING.wait()
    world.expire_leases()
    world.janitor()
    return (world.root / "diary").read_text().splitlines()[1:]


@pytest.mark.parametrize("error", [ValueError("no such column"), "no such column"])
def test_in_the_tasks_process_the_attempt_ends_at_once(world: World, diary: Path, error: Any) -> None:
    listener.on_task_instance_failed(previous_state="running", task_instance=in_the_task(world), error=error)
    assert lines(diary)[1:] == ["diary failed live/0 1"]
    assert "no such column" in diary.read_text()
    assert world.stages() == []


def test_trouble_with_the_checkpoint_is_no_trouble_of_the_task(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = MicroBatchOperator(task_id="micro_batch", pipeline=world.pipeline)
    (tmp_path / "checkpoint" / "leases").rename(tmp_path / "gone")
    (tmp_path / "checkpoint" / "leases").write_text("no folder")
    listener.on_task_instance_failed(previous_state="running", task_instance=in_the_task(world, task), error=OSError())
    assert "left to the janitor" in caplog.text


def test_elsewhere_it_only_marks(world: World, diary: Path) -> None:
    for _ in range(2):
        listener.on_task_instance_failed(previous_state="running", task_instance=elsewhere(world), error="it is gone")
    MARKING.wait()
    assert len(world.checkpoint.marks.all()) == 1
    assert lines(diary) == ["diary created live/0 1"]
    assert world.stages() == ["live/0 attempt 1"]
    (line,) = ended(world)
    assert line.startswith("diary failed live/0 1 ")
    assert line.endswith("Airflow: it is gone")


def test_nothing_is_marked_where_no_attempt_is_unfinished(world: World) -> None:
    world.expire_leases()
    world.run(1)
    listener.on_task_instance_failed(previous_state="running", task_instance=elsewhere(world), error="it is gone")
    MARKING.wait()
    assert world.checkpoint.marks.names() == []


def test_a_retrys_id_is_not_taken_for_the_dead_tries(world: World) -> None:
    instance = elsewhere(world, id="of the next try", state="up_for_retry")
    listener.on_task_instance_failed(previous_state="running", task_instance=instance, error="it is gone")
    (line,) = ended(world)
    assert line.endswith("Airflow: it is gone")


@pytest.mark.parametrize("state", ["failed", "success", "skipped"])
def test_what_a_user_did_is_canceled(world: World, state: str) -> None:
    hook = getattr(listener, f"on_task_instance_{state}")
    hook(
        previous_state=None,
        task_instance=elsewhere(world, state=state),
        **({"error": MANUALLY} if state == "failed" else {}),
    )
    (line,) = ended(world)
    assert line.startswith("diary canceled live/0 1")


@pytest.mark.parametrize(
    ("msg", "status"),
    [("task_failure", "failed"), ("timed_out", "canceled"), ("state was manually set to `failed`.", "canceled")],
)
def test_a_failed_run_marks_the_tasks_that_are_ours(world: World, msg: str, status: str) -> None:
    ours = SimpleNamespace(**{listener.FIELD: world.pipeline.checkpoint})
    world.clock = 0
    listener.on_dag_run_failed(dag_run=run_of(ours, ours, SimpleNamespace()), msg=msg)
    (line,) = ended(world)
    assert line.startswith(f"diary {status} live/0 1")


def test_it_is_silent_on_tasks_that_are_not_ours(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def touched(*_: object, **__: object) -> None:
        raise AssertionError("it was about to do something")

    monkeypatch.setattr(MARKING, "put", touched)
    monkeypatch.setattr(listener, "_mark", touched)
    monkeypatch.setattr("airflow_provider_microbatch.task_context.run_context.open_execution", touched)
    caplog.set_level(logging.DEBUG)
    theirs = SimpleNamespace(execute=print)
    for instance in (
        elsewhere(world, task=None),
        elsewhere(world, task=SimpleNamespace()),
        SimpleNamespace(id="x", task=theirs),
    ):
        for previous in ("running", None):
            listener.on_task_instance_success(previous_state=previous, task_instance=instance)
            listener.on_task_instance_skipped(previous_state=previous, task_instance=instance)
            listener.on_task_instance_failed(previous_state=previous, task_instance=instance, error=OSError())
    monkeypatch.undo()
    listener.on_dag_run_failed(dag_run=run_of(theirs, SimpleNamespace()), msg="task_failure")
    listener.on_dag_run_failed(dag_run=SimpleNamespace(dag_id="x", run_id="y", dag=None), msg="task_failure")
    assert caplog.text == ""
    assert world.checkpoint.marks.names() == []


def test_a_checkpoint_that_is_not_mounted_here_is_not_made(tmp_path: Path) -> None:
    mark = Mark(dag_id="d", run_id="r", task_id="t", status="failed", reason="gone", marked_ms=1)
    MARKING.put(str(tmp_path / "not mounted"), mark)
    MARKING.put("relative/path", mark)
    MARKING.wait()
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_hangs_holds_nobody_up() -> None:
    mark = Mark(dag_id="d", run_id="r", task_id="t", status="failed", reason="gone", marked_ms=1)
    mended, written = threading.Event(), []

    def write(location: str, _: Mark) -> None:
        mended.wait()
        written.append(location)

    marking = Marking(write)
    for number in range(2000):
        marking.put(str(number), mark)
    assert written == []
    mended.set()
    marking.wait()
    assert len(written) in (1000, 1001), "what did not fit is lost, which the janitor makes good"


@pytest.mark.parametrize(
    "make",
    [
        lambda pipeline: MicroBatchOperator(task_id="t", pipeline=pipeline),
        lambda pipeline: SubmitMicroBatchOperator(task_id="t", pipeline=pipeline, key="live/0"),
    ],
)
def test_scheduler_and_api_server_know_our_tasks_as_data(world: World, make: Any) -> None:
    from airflow.sdk import DAG
    from airflow.serialization.serialized_objects import DagSerialization

    with DAG("orders", schedule=None) as dag:
        make(world.pipeline)
    task = DagSerialization.from_dict(DagSerialization.to_dict(dag)).task_dict["t"]
    assert getattr(task, listener.FIELD) == world.pipeline.checkpoint
    assert not hasattr(task, "execute")


PROBE = """
import json, os, sys
import airflow.plugins_manager
before = set(sys.modules)
from airflow.listeners.listener import get_listener_manager
has = [get_listener_manager().has_listeners]
loaded = sorted(name for name in set(sys.modules) - before if name.startswith("airflow_provider_microbatch."))
child = os.fork()
if not child:
    os._exit(get_listener_manager().has_listeners)
has.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1)
from airflow.sdk.listener import get_listener_manager as of_a_task
from airflow_provider_microbatch.listeners.registration import listen
has.append(of_a_task().has_listeners)
listen()
listen()
has.append(of_a_task().has_listeners)
print(json.dumps([has, loaded]))
"""

IMPORTED_BY_A_TASK = """
import json, sys
from airflow_provider_microbatch import FileSink, FileSource, Pipeline
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.engines.spark_connect import SparkConnectEngine
from airflow_provider_microbatch.sources.file.open import OpenFileSource
import airflow_provider_microbatch.sinks.file.posix
print(json.dumps([name for name in sys.modules if name.startswith("airflow_provider_microbatch.")]))
"""


@pytest.mark.parametrize(
    ("component", "itself", "forked"),
    [
        ("scheduler", True, False),
        ("api-server", True, True),
        ("dag-processor", False, False),
    ],
)
def test_it_is_where_it_marks_and_not_where_dag_files_are_parsed(component: str, itself: bool, forked: bool) -> None:
    has, loaded = probed(component, executor="CeleryExecutor")
    assert has == [itself, forked, itself, True]
    ours = "airflow_provider_microbatch"
    assert [name for name in loaded if not name.startswith((f"{ours}.listeners", f"{ours}.plugins"))] == []


def test_a_scheduler_that_forks_tasks_has_loaded_what_they_import() -> None:
    has, loaded = probed("scheduler", executor="LocalExecutor")
    assert has == [True, False, True, True]
    # Airflow looks at that one in each of its processes, before it looks for plugins.
    assert set(json.loads(told(IMPORTED_BY_A_TASK))) - {"airflow_provider_microbatch.get_provider_info"} <= set(loaded)


def probed(component: str, *, executor: str) -> Any:
    return json.loads(told(PROBE, component, AIRFLOW__CORE__EXECUTOR=executor).splitlines()[-1])


def told(code: str, *arguments: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, env={**os.environ, **environment}, capture_output=True,
        text=True, check=True,
    ).stdout  # fmt: skip


def test_the_page_shows_the_table() -> None:
    assert events.table() in (ROOT / "docs" / "events.md").read_text()


def test_every_measured_event_has_a_row() -> None:
    assert len(events.EVENTS) == 20
    assert len({row.event for row in events.EVENTS}) == 20
    assert {status for row in events.EVENTS for status in row.status} == {
        "created", "finished", "failed", "canceled", events.NOT_THE_END
    }  # fmt: skip
