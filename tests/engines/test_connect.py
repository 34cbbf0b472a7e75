"""Batches on a real Spark Connect server with a resident runner, and what becomes of them when something dies."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from acme_microbatch.counter import CounterSource
from jobs.orders_api import OrdersApi
from parted_numbers import PartedNumbers

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.engines import packaging, processes, server
from airflow_provider_microbatch.engines.lookup import find_engine
from airflow_provider_microbatch.engines.spark_connect import SparkConnectEngine
from airflow_provider_microbatch.exceptions import AttemptCanceledError, EngineError, TransformError
from airflow_provider_microbatch.execution.engine import EngineState
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.sources.python import PythonSource
from airflow_provider_microbatch.task_context import stoppable
from tests.airflow_face.support import context
from tests.execution.world import World
from tests.support.orders_api import OrdersServer, serving
from tests.support.waiting import wait_until
from tests.support.warm import Warm, warm_server

pytestmark = pytest.mark.spark

KEY = BatchKey("live", 0)
CONN_ID = "warm"


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    with warm_server(tmp_path_factory.mktemp("engine")) as running:
        yield running


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


UNION = """
from functools import reduce
def transform(batch):
    return reduce(lambda some, more: some.union(more), [rows.select("id") for rows in batch.sources.values()])
"""


def test_batches_of_sources_that_users_and_packages_bring_one_after_the_other(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, numbers = tmp_path / "head", tmp_path / "numbers.txt"
    monkeypatch.setenv("AIRFLOW_CONN_ACME", json.dumps({"conn_type": "acme", "host": str(tmp_path)}))
    transform(world, UNION)
    with serving(OrdersServer()) as api:
        world.sources = {
            "api": OrdersApi(api.url),
            "parted": PartedNumbers(str(head)),
            "stream": PythonSource("number_streams:Numbers", options={"path": str(head)}),
            "numbers": CounterSource(numbers.name, max_rows=3, conn_id="acme"),
        }
        api.add(100, 101)
        head.write_text("12")
        numbers.write_text("5")
        assert execute(world)["rows_out"] == 2 + 12 + 12 + 3
        api.add(102)
        head.write_text("14")
        assert execute(world, 2)["rows_out"] == 1 + 2 + 2 + 2
    assert world.table() == {
        0: sorted([100, 101, *range(12), *range(1, 13), *(1, 2, 3)]),
        1: sorted([102, 12, 13, 13, 14, *(4, 5)]),
    }
    first = world.checkpoint.offset_log.get(0)
    assert first is not None
    assert (first.starts["api"], first.starts["parted"], first.starts["stream"]) == ("0", "0", '{"n": 0}')
    # What is committed is said to the user's source.
    assert (tmp_path / "head.committed").read_text() == "14"


DIMENSION = """
import os, time
from pyspark.sql import functions as F
def transform(batch):
    F.udf(lambda n: n, "long")("id")  # a type by name is read by whatever session PySpark takes for the process's own
    dimension = batch.spark.read.schema("id long").json({folder!r})
    if {cached}:
        dimension.cache()
        assert dimension.count() and dimension.is_cached
    while not os.path.exists({go!r}):
        time.sleep(0.05)
    return dimension
"""


class Dimension:
    """A folder that the transform reads by itself, and that grows behind the server's back."""

    def __init__(self, world: World, *, cached: bool) -> None:
        self.folder, self.go = world.root / "dimension", world.root / "go"
        self.folder.mkdir()
        transform(world, DIMENSION.format(folder=str(self.folder), go=str(self.go), cached=cached))

    def land(self, number: int) -> None:
        (self.folder / f"{number}.json").write_text(json.dumps({"id": number}))


def mapped(world: World, index: int) -> None:
    """One of several task runs of the same DAG run."""
    given = context(world.root / "bundle")
    given["ti"].map_index = index
    operator(world).execute(given)


@pytest.mark.parametrize("cached", [False, True])
def test_each_attempt_of_a_dag_run_sees_what_is_there_now(world: World, cached: bool) -> None:
    dimension = Dimension(world, cached=cached)
    dimension.go.touch()
    for index in range(2):
        world.land(index)
        dimension.land(index)
        mapped(world, index)
    assert world.table() == {0: [0], 1: [0, 1]}
    assert len({handles(world, BatchKey("live", index))[0]["session"] for index in range(2)}) == 2


ENOUGH = """
def transform(batch):
    orders = batch.sources["orders"]
    if orders.count() < 3:
        raise ValueError("too few")
    return orders
"""


def test_a_retry_reads_a_planned_file_that_was_rewritten_as_it_is_now(world: World) -> None:
    world.sources = {"orders": replace(world.sources["orders"], on_changed="read")}
    transform(world, ENOUGH)
    world.land(1)
    with pytest.raises(TransformError, match="too few"):
        execute(world)
    world.land(1, 2, 3)
    assert execute(world)["rows_out"] == 3
    assert world.table() == {0: [1, 2, 3]}


def test_what_an_attempt_has_cached_is_not_seen_by_another_pipeline_that_runs_meanwhile(
    world: World, warm: Warm, tmp_path: Path
) -> None:
    dimension = Dimension(world, cached=True)
    dimension.land(1)
    world.land(1)
    slow = threading.Thread(target=execute, args=(world,))
    slow.start()
    try:
        wait_until(lambda: held(warm, CACHED) == [1])
        (tmp_path / "other" / "bundle" / "jobs").mkdir(parents=True)
        other = World(tmp_path / "other")
        other.land(1)
        dimension.land(2)
        source = (world.root / "bundle" / "jobs" / "orders.py").read_text()
        transform(other, source.replace(str(dimension.go), str(other.root)))
        execute(other)
        assert other.table() == {0: [1, 2]}
    finally:
        dimension.go.touch()
        slow.join()
    assert world.table() == {0: [1]}


LEAVES = """
def transform(batch):
    spark = batch.spark
    for key, value in (("spark.sql.caseSensitive", "true"), ("spark.sql.files.ignoreCorruptFiles", "true")):
        assert spark.conf.get(key) == "false"
        spark.conf.set(key, value)
    assert not spark.catalog.tableExists("mine")
    spark.range(1).createTempView("mine")
    spark.sql("/* CREATE TABLE x */ CREATE TEMPORARY VIEW too AS SELECT 'CACHE TABLE x' AS text")
    refused = []
    for name, leave in {
        "view": lambda: spark.range(1).createOrReplaceGlobalTempView("x"),
        "sql view": lambda: spark.sql("-- so\\nCREATE GLOBAL TEMP VIEW x AS SELECT 1"),
        "cache": lambda: spark.catalog.cacheTable("mine"),
        "sql cache": lambda: spark.sql("cache lazy table y AS SELECT 1"),
        "table": lambda: spark.range(1).write.saveAsTable("x"),
        "table 2": lambda: spark.range(1).writeTo("default.x").createOrReplace(),
        "sql table": lambda: spark.sql("CREATE TABLE IF NOT EXISTS spark_catalog.default.`x` (id INT) USING json"),
        "of a frame": lambda: spark.sql("CREATE TABLE x AS SELECT * FROM {frame}", frame=spark.range(1)),
        "sql database": lambda: spark.sql("CREATE DATABASE x"),
        "program": lambda: spark.sql("EXECUTE IMMEDIATE 'CREATE OR REPLACE VIEW x AS SELECT 1'"),
    }.items():
        try:
            leave()
        except Exception as error:
            assert type(error).__name__ == "SharedNameError", (name, error)
            refused.append(name)
    assert len(refused) == 10, refused
    return batch.sources["orders"]
"""


def test_settings_and_names_do_not_cross_and_names_of_all_are_refused(world: World) -> None:
    transform(world, LEAVES)
    for index in (0, 1):
        world.land(index)
        mapped(world, index)
    assert world.table() == {0: [0], 1: [1]}
    transform(world, "def transform(batch):\n    batch.spark.range(1).write.saveAsTable('x')\n")
    world.land(2)
    with pytest.raises(TransformError, match=r"(?s)saveAsTable.*table 'x' in the catalog in the server's memory"):
        mapped(world, 2)


def held(warm: Warm, *kinds: str) -> list[int]:
    """How many objects of these classes live in the server after a full collection."""
    told = subprocess.run(["jcmd", str(warm.running.server_pid), "GC.class_histogram"], capture_output=True, text=True)
    counts = {line.split()[3]: int(line.split()[1]) for line in told.stdout.splitlines() if line.count(".") > 1}
    return [counts.get(f"org.apache.spark.sql.{kind}", 0) for kind in kinds]


SESSION, CACHED = "connect.service.SessionHolder", "execution.CachedData"


def test_a_server_keeps_nothing_of_attempts_that_have_ended(warm: Warm, world: World) -> None:
    engine = SparkConnectEngine(conn_id=CONN_ID)
    for number in range(20):
        handle = engine.handle(pipeline="orders", key=BatchKey("live", number), epoch=1)
        engine._launches[handle["tag"]].close()
    wait_until(lambda: held(warm, SESSION)[0] < 5)


def test_an_attempt_of_any_login_is_seen_and_stopped(world: World, warm: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    login = {**warm.connection, "login": "Jane Doe;a=b"}
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", json.dumps(login))
    engine = SparkConnectEngine(conn_id=CONN_ID)
    handle = engine.handle(pipeline="orders", key=KEY, epoch=1)
    assert engine.poll(handle) is EngineState.RUNNING
    assert engine.cancel(handle)


def test_a_failing_transform_is_told_by_its_traceback(world: World) -> None:
    transform(world, "def transform(batch):\n    helper()\ndef helper():\n    raise ValueError('no good')\n")
    world.land(1)
    with pytest.raises(TransformError, match=r"(?s)in helper.*no good"):
        execute(world)
    assert world.stages() == []
    transform(world, "def transform(batch):\n    return batch.sources['orders']\n")
    execute(world, 2)
    assert world.table() == {0: [1]}


def test_a_result_that_cannot_be_written_counts_as_the_batchs_failure(world: World) -> None:
    transform(world, "def transform(batch):\n    return batch.sources['orders'].selectExpr('id', 'id AS ID')\n")
    world.land(1)
    with pytest.raises(TransformError, match=r"cannot be written: AnalysisException: \[COLUMN_ALREADY_EXISTS\]"):
        execute(world)
    end = world.checkpoint.attempts.ended(KEY, 1)
    assert end is not None
    assert end.cause == "job"


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
    batch.spark.range(1).cache().count()
    return batch.sources["orders"].select(F.udf(tick, "long")("id").alias("id"))
"""

CACHES = """
def transform(batch):
    orders = batch.sources["orders"].cache()
    assert orders.count() == 1 and orders.is_cached
    return orders
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
    world: World, warm: Warm, task: tuple[Ticking, subprocess.Popen[bytes], dict[str, Any]]
) -> None:
    ticking, process, handle = task
    # The process on the server's side of the task first, so that nobody is left who could tell the server.
    psutil.Process(handle["pid"]).kill()
    process.kill()
    process.wait()
    assert not ticking.is_silent()
    assert held(warm, CACHED)[0] >= 1
    engine = find_engine("spark-connect")
    assert engine is not None
    assert engine.poll(handle) is EngineState.UNKNOWN
    transform(world, CACHES)
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
    wait_until(lambda: held(warm, CACHED) == [0])


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


def test_on_kill_stops_the_write_and_nothing_is_published(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy server may take longer than a stop waits; tests/airflow_face/test_stop.py has what becomes of it then.
    monkeypatch.setattr(stoppable, "_AGAIN_SECONDS", 60.0)
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
    assert main(["engine", "start", "--dir", str(warm.folder), "--master", "yarn"]) == 0
    assert "goes on with the master local[2], not yarn" in capsys.readouterr().out
    assert main(["engine", "status", "--dir", str(warm.folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["server_pid"] == warm.running.server_pid
    assert facts["spark"].startswith("4.")
    assert facts["attempts"] == 0
    assert warm.folder.stat().st_mode & 0o077 == 0
    assert (warm.folder / server.CONNECTION).stat().st_mode & 0o077 == 0


def test_nothing_of_a_warm_engine_is_open_to_the_network(warm: Warm) -> None:
    listening: list[str] = []
    for process in processes.find(warm.running.tag):
        with contextlib.suppress(psutil.NoSuchProcess):  # of an attempt before, which ends at this moment
            found = process.net_connections(kind="inet")
            listening += [one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN]
    assert len(listening) >= 3, "Spark Connect, driver, block manager"
    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert "spark.authenticate=true" in (warm.folder / "server.properties").read_text()
    assert all(path.stat().st_mode & 0o077 == 0 for path in warm.folder.glob("*.*") if path.is_file())


def test_a_server_that_refuses_the_token_is_told_before_anything_is_recorded(
    world: World, warm: Warm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", json.dumps({**warm.connection, "password": "wrong"}))
    with pytest.raises(EngineError, match=r"sc://localhost:\d+ of connection 'warm' cannot be used"):
        SparkConnectEngine(conn_id=CONN_ID).handle(pipeline="orders", key=KEY, epoch=1)
