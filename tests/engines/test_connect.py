"""Batches on a real Spark Connect server with a resident runner, and what becomes of them when something dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.engines import packaging, processes, server
from airflow_provider_microbatch.engines.lookup import find_engine
from airflow_provider_microbatch.engines.spark_connect import SparkConnectEngine
from airflow_provider_microbatch.exceptions import AttemptCanceledError, EngineError, TransformError
from airflow_provider_microbatch.execution.engine import EngineState
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from tests.airflow_face.support import context
from tests.execution.world import World

pytestmark = pytest.mark.spark

KEY = BatchKey("live", 0)
CONN_ID = "warm"


@dataclass(frozen=True)
class Warm:
    """A running engine: its folder, and the connection to it as Airflow has it."""

    folder: Path
    running: server.Running
    connection: dict[str, Any]


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    folder = tmp_path_factory.mktemp("engine")
    folder.chmod(0o700)
    try:
        assert main(["engine", "start", "--dir", str(folder), "--master", "local[2]"]) == 0
        running = server.status(folder).running
        assert running is not None
        (connection,) = json.loads((folder / server.CONNECTION).read_text()).values()
        yield Warm(folder, running, connection)
    finally:
        assert main(["engine", "stop", "--dir", str(folder)]) == 0
    assert not processes.find(running.tag)
    assert main(["engine", "status", "--dir", str(folder)]) == 1


@pytest.fixture
def world(tmp_path: Path, warm: Warm, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", json.dumps(warm.connection))
    (tmp_path / "bundle" / "jobs").mkdir(parents=True)
    made = World(tmp_path)
    made.landing()
    return made


def transform(world: World, source: str) -> None:
    (world.root / "bundle" / "jobs" / "orders.py").write_text(source)


def operator(world: World, **kwargs: Any) -> MicroBatchOperator:
    return MicroBatchOperator(**{"task_id": "micro_batch", "pipeline": world.pipeline, "conn_id": CONN_ID, **kwargs})


def execute(world: World, number: int = 1, **kwargs: Any) -> dict[str, Any]:
    return operator(world, **kwargs).execute(context(world.root / "bundle", number=number))


def handles(world: World, key: BatchKey = KEY) -> list[dict[str, Any]]:
    return [dict(attempt.handle) for attempt in world.checkpoint.attempts.all(key)]


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    moment = threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        moment.wait(0.05)


WITH_HELPER = """
from helper import plus
from pyspark.sql import functions as F
print("shown in the task's log")
def transform(batch):
    return batch.sources["orders"].select(F.udf(plus, "long")("id").alias("id"))
"""


def test_code_reaches_client_and_workers_and_attempts_do_not_mix_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    transform(world, WITH_HELPER)
    world.options["py_files"] = ["helper.py"]
    (world.root / "bundle" / "helper.py").write_text("def plus(n):\n    return n + 100\n")
    world.land(1, 2)
    summary = execute(world)
    assert (summary["state"], summary["rows_out"]) == ("committed", 2)
    assert "shown in the task's log" in caplog.text
    # The same names, other code, the same Python process and the same DAG run.
    (world.root / "bundle" / "helper.py").write_text("def plus(n):\n    return n + 500\n")
    world.land(3)
    execute(world, 2)
    assert world.table() == {0: [101, 102], 1: [503]}
    first, second = handles(world)[0], handles(world, BatchKey("live", 1))[0]
    assert not packaging.folder_of(first["tag"]).exists()
    assert first["session"] != second["session"]


# A type by name is read by whatever session PySpark takes for the process's own.
TYPED = """
from pyspark.sql import functions as F
def transform(batch):
    F.udf(lambda n: n, "long")("id")
    return batch.sources["orders"]
"""


def test_a_session_is_one_for_a_dag_run_and_a_new_one_when_the_server_has_closed_it(world: World, warm: Warm) -> None:
    transform(world, TYPED)

    def mapped(index: int) -> None:
        world.land(index + 1)
        given = context(world.root / "bundle")
        given["ti"].map_index = index
        operator(world).execute(given)

    mapped(0)
    mapped(1)
    (first,), (second,) = handles(world), handles(world, BatchKey("live", 1))
    assert first["session"] == second["session"]
    assert first["tag"] != second["tag"]
    close = (
        "import sys; from pyspark.sql import SparkSession; "
        "SparkSession.builder.remote(sys.stdin.read()).create().stop()"
    )
    url = f"sc://localhost:{warm.connection['port']}/;token={warm.connection['password']}"
    url += f";user_id={first['user']};session_id={first['session']}"
    subprocess.run([sys.executable, "-c", close], input=url, text=True, check=True)
    mapped(2)
    assert handles(world, BatchKey("live", 2))[0]["session"] != first["session"]
    assert world.table() == {0: [1], 1: [2], 2: [3]}


def test_a_failing_transform_is_told_by_its_traceback(world: World) -> None:
    transform(world, "def transform(batch):\n    helper()\ndef helper():\n    raise ValueError('no good')\n")
    world.land(1)
    with pytest.raises(TransformError, match=r"(?s)in helper.*no good"):
        execute(world)
    assert world.stages() == []
    transform(world, "def transform(batch):\n    return batch.sources['orders']\n")
    execute(world, 2)
    assert world.table() == {0: [1]}


TICKING = """
import time
from pyspark.sql import functions as F
def tick(n):
    for _ in range(1200):
        with open({ticks!r}, "a") as file:
            file.write(".")
        time.sleep(0.05)
    return n
def transform(batch):
    return batch.sources["orders"].select(F.udf(tick, "long")("id").alias("id"))
"""

TASK = """
import json, sys
from pathlib import Path
from tests.engines.test_connect import execute, World
execute(World(Path(sys.argv[1])))
"""


class Ticking:
    """A batch that writes for a minute, and shows on disk that it does."""

    def __init__(self, world: World) -> None:
        self.path = world.root / "ticks"
        transform(world, TICKING.format(ticks=str(self.path)))
        world.land(1)

    def count(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def is_silent(self, seconds: float = 0.7) -> bool:
        """Soon after a cancel: Spark gives a Python worker two seconds before it ends it."""
        before = self.count()
        threading.Event().wait(seconds)
        return self.count() == before


@pytest.fixture
def task(world: World) -> Iterator[tuple[Ticking, subprocess.Popen[bytes], dict[str, Any]]]:
    """A task in a process of its own, in the middle of its write."""
    ticking = Ticking(world)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen([sys.executable, "-c", TASK, str(world.root)], env=environment) as process:
        try:
            wait_until(lambda: ticking.count() > 3 or process.poll() is not None)
            assert process.poll() is None
            yield ticking, process, handles(world)[0]
        finally:
            process.kill()


def test_what_a_killed_client_left_on_the_server_is_cancelled_and_the_batch_published_once(
    world: World, task: tuple[Ticking, subprocess.Popen[bytes], dict[str, Any]]
) -> None:
    ticking, process, handle = task
    # The process on the server's side of the task first, so that nobody is left who could tell the server.
    psutil.Process(handle["pid"]).kill()
    process.kill()
    process.wait()
    assert not ticking.is_silent()
    engine = find_engine("spark-connect")
    assert engine is not None
    assert engine.poll(handle) is EngineState.UNKNOWN
    transform(world, "def transform(batch):\n    return batch.sources['orders']\n")
    world.expire_leases()
    execute(world, 2)
    wait_until(ticking.is_silent)
    assert world.table() == {0: [1]}
    assert world.stages() == []
    ended = world.checkpoint.attempts.ended(KEY, 1)
    assert ended is not None
    assert ended.state == "failed"
    assert str(ended.error).startswith("found dead")
    assert engine.cancel(handle) is False


def test_a_killed_task_takes_its_write_along(
    world: World, task: tuple[Ticking, subprocess.Popen[bytes], dict[str, Any]]
) -> None:
    ticking, process, handle = task
    process.kill()
    process.wait()
    wait_until(lambda: not psutil.pid_exists(handle["pid"]))
    wait_until(ticking.is_silent)


def test_another_process_can_see_and_cancel_it(
    world: World, warm: Warm, task: tuple[Ticking, subprocess.Popen[bytes], dict[str, Any]]
) -> None:
    ticking, process, handle = task
    assert warm.connection["password"] not in json.dumps(handle)
    for running in (*processes.find(warm.running.tag), psutil.Process(process.pid)):
        assert warm.connection["password"] not in " ".join(running.cmdline())
    engine = find_engine("spark-connect")
    assert engine is not None
    assert engine.poll(handle) is EngineState.RUNNING
    assert server.status(warm.folder).attempts == 1
    # As the janitor of another deployment would: the connection is not known there, but another one to the server is.
    assert engine.cancel({**handle, "conn_id": CONN_ID}) is True
    wait_until(ticking.is_silent)
    assert process.wait(30) != 0
    assert engine.poll(handle) is EngineState.UNKNOWN
    assert world.table() == {}


def test_on_kill_stops_the_write_and_nothing_is_published(world: World) -> None:
    ticking = Ticking(world)
    task = operator(world)
    killer = threading.Thread(target=lambda: (wait_until(lambda: ticking.count() > 3), task.on_kill()))
    killer.start()
    with pytest.raises(AttemptCanceledError):
        task.execute(context(world.root / "bundle"))
    killer.join()
    wait_until(ticking.is_silent)
    assert (world.table(), world.stages()) == ({}, [])


def test_without_a_runner_an_attempt_gets_a_process_of_its_own(
    world: World, warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = {**warm.connection, "extra": {"engine_dir": str(tmp_path / "nowhere")}}
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", json.dumps(elsewhere))
    transform(world, "def transform(batch):\n    return batch.sources['orders']\n")
    world.land(1)
    execute(world, conf={"spark.sql.shuffle.partitions": "3"}, packages="a:b:1")
    assert world.table() == {0: [1]}
    assert not psutil.pid_exists(handles(world)[0]["pid"])


def test_a_second_start_says_that_one_runs(warm: Warm, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "start", "--dir", str(warm.folder)]) == 0
    assert "runs already" in capsys.readouterr().out
    assert main(["engine", "status", "--dir", str(warm.folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["server_pid"] == warm.running.server_pid
    assert facts["spark"].startswith("4.")
    assert facts["sessions"] >= 1
    assert warm.folder.stat().st_mode & 0o077 == 0
    assert (warm.folder / server.CONNECTION).stat().st_mode & 0o077 == 0


def test_a_server_that_refuses_the_token_is_told_before_anything_is_recorded(
    world: World, warm: Warm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", json.dumps({**warm.connection, "password": "wrong"}))
    with pytest.raises(EngineError, match=r"sc://localhost:\d+ of connection 'warm' cannot be used"):
        SparkConnectEngine(conn_id=CONN_ID).handle(pipeline="orders", key=KEY, epoch=1)
