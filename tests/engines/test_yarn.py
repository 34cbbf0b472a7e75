"""Batches on a real YARN, by spark-submit in cluster and in client mode."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_microbatch.engines import processes
from airflow_provider_microbatch.engines.code import resolve_code
from airflow_provider_microbatch.engines.spark_submit import SparkSubmitEngine
from airflow_provider_microbatch.execution.engine import EngineState
from tests.execution.world import KEY, World, run_identity
from tests.support.waiting import wait_until
from tests.support.yarn import Yarn, yarn_cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

# The first attempt never ends.
WAITS_ONCE = """
import time
from pathlib import Path
def transform(batch):
    Path({begun!r}).touch()
    if batch.epoch == 1:
        time.sleep(600)
    return batch.sources["orders"]
"""

TASK = """
import json, socket, sys
from pathlib import Path
from tests.engines.test_yarn import run
socket.gethostname = lambda: "lost"
run(Path(sys.argv[1]), json.loads(sys.argv[2]), try_number=1)
"""


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with yarn_cluster(tmp_path_factory.mktemp("yarn")) as running:
        yield running


def connect(monkeypatch: pytest.MonkeyPatch, yarn: Yarn, *, deploy_mode: str) -> None:
    """As Airflow's documentation has it."""
    connection = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": deploy_mode}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.configuration))


def run(root: Path, conf: Mapping[str, str], *, try_number: int) -> Any:
    """The task run, as a process of Airflow's makes it."""
    world = World(root)
    code, called = resolve_code("waits.py:transform", base=root)
    run, engine = run_identity(0, try_number=try_number), SparkSubmitEngine(conf=conf, grace_seconds=1.5)
    return world.execution.run(run=run, engine=engine, code=code, transform=called)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Of a pipeline whose first attempt never ends."""
    (tmp_path / "waits.py").write_text(WAITS_ONCE.format(begun=str(tmp_path / "begun")))
    World(tmp_path).land(1, 2)
    return tmp_path


def test_a_retry_finds_the_application_that_its_task_has_left_on_yarn(
    root: Path, yarn: Yarn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task's host is gone with all that ran there: in cluster mode nobody but YARN knows of the driver."""
    connect(monkeypatch, yarn, deploy_mode="cluster")
    with subprocess.Popen([sys.executable, "-c", TASK, str(root), json.dumps(dict(yarn.spark))]) as task:
        try:
            wait_until(lambda: (root / "begun").exists() or task.poll() is not None, seconds=400)
        finally:  # what never ends is not waited for either
            processes.end([*psutil.Process(task.pid).children(recursive=True), psutil.Process(task.pid)], grace=0)
    (attempt,) = World(root).checkpoint.attempts.all(KEY)
    assert list(yarn.states().values()) == ["RUNNING"]
    assert SparkSubmitEngine().poll(attempt.handle) is EngineState.RUNNING

    assert run(root, yarn.spark, try_number=2) is not None
    assert World(root).table() == {0: [1, 2]}
    wait_until(lambda: list(yarn.states().values()) == ["KILLED", "FINISHED"])  # after its client
