"""Jobs on a real Spark standalone cluster, a master and a worker, in client mode through both engines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from airflow_provider_microbatch.engines import server
from airflow_provider_microbatch.engines.spark_connect import SparkConnectEngine
from airflow_provider_microbatch.execution.engine import Code, Engine
from airflow_provider_microbatch.runtime.job import Job
from benchmarks.standalone import standalone_cluster
from tests.engines.conftest import World

pytestmark = pytest.mark.spark

# A Python function per row runs in the worker's Python: the user's module must have travelled there.
SHOUT = """
from pyspark.sql import functions as F
def shout(text):
    return text.upper()
def transform(batch):
    return batch.sources['orders'].withColumn('loud', F.udf(shout)('note'))
"""


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the cluster. Its daemons and executors start as quickly as the tests' drivers do."""
    with ExitStack() as running:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("JAVA_TOOL_OPTIONS", os.environ["SPARK_SUBMIT_OPTS"])
            address = running.enter_context(standalone_cluster(tmp_path_factory.mktemp("cluster"), workers=1))
        yield address


@pytest.fixture
def shouting(world: World) -> tuple[Job, Code]:
    paths = [world.land("a.json", [{"id": 1, "note": "x"}]), world.land("b.json", [{"id": 2, "note": "y"}])]
    return world.job(world.transform(SHOUT), paths)


def table(world: World) -> list[tuple[int, str]]:
    """Publish the attempt, and read what is there then."""
    manifest = world.sink.publish(world.expected, 1)
    folder = world.sink.root / "lane=live" / "batch_id=0"
    rows = [json.loads(line) for name in manifest.files for line in (folder / name).read_text().splitlines()]
    return sorted((row["id"], row["loud"]) for row in rows)


def test_a_job_runs_on_a_standalone_cluster_and_its_python_reaches_the_worker(
    world: World, shouting: tuple[Job, Code], master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"conn_type": "spark", "host": master.rpartition(":")[0], "port": int(master.rpartition(":")[2])}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    handle = world.start(*shouting)
    assert handle["master"] == master
    world.engine.result(handle)
    assert table(world) == [(1, "X"), (2, "Y")]


def test_a_warm_engine_may_be_the_driver_of_a_standalone_cluster(
    world: World,
    shouting: tuple[Job, Code],
    master: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The server tells the worker which Python to run; on a cluster that is for its owner to say.
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    folder = tmp_path_factory.mktemp("engine")
    folder.chmod(0o700)
    try:
        running, _ = server.start(folder, master=master)
        assert running.master == master
        (connection,) = json.loads((folder / server.CONNECTION).read_text()).values()
        monkeypatch.setenv("AIRFLOW_CONN_WARM", json.dumps(connection))
        job, code = shouting
        engine: Engine = SparkConnectEngine(conn_id="warm")
        handle: dict[str, Any] = dict(engine.handle(pipeline="orders", key=world.key, epoch=1))
        engine.start(handle, job, code)
        engine.result(handle)
    finally:
        server.stop(folder)
    assert table(world) == [(1, "X"), (2, "Y")]
