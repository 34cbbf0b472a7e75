"""A job on a real Spark standalone cluster, a master and a worker on loopback, in client mode."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.conftest import World

pytestmark = pytest.mark.spark

SECONDS = 90


class Daemon:
    """One of Spark's own servers; it says in its log where it listens."""

    def __init__(self, log: Path, *arguments: str) -> None:
        spark_class = shutil.which("spark-class")
        assert spark_class is not None, "spark-class of the locked pyspark is not on PATH"
        self._log = log
        self._output = log.open("wb")
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        self._process = subprocess.Popen(
            [spark_class, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=environment,
        )

    def said(self, pattern: str) -> str:
        """Wait for a line of the log."""
        deadline, moment = time.monotonic() + SECONDS, threading.Event()
        while (found := re.search(pattern, self._log.read_text(errors="replace"))) is None:
            assert self._process.poll() is None, self._log.read_text(errors="replace")
            assert time.monotonic() < deadline, self._log.read_text(errors="replace")
            moment.wait(0.1)
        return found.group(1)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(SECONDS)
        self._output.close()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """Address of a cluster with one worker."""
    daemons: list[Daemon] = []
    try:
        package = "org.apache.spark.deploy"
        daemons.append(
            Daemon(
                tmp_path / "master.log",
                *(f"{package}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
            )
        )
        address = daemons[0].said(r"Starting Spark master at (spark://\S+)")
        daemons.append(
            Daemon(
                tmp_path / "worker.log",
                *(f"{package}.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "--cores", "1"),
                *("--memory", "1g", "--work-dir", str(tmp_path / "work"), address),
            )
        )
        daemons[1].said(r"(Successfully registered with master)")
        yield address
    finally:
        for daemon in reversed(daemons):
            daemon.stop()


def test_a_job_runs_on_a_standalone_cluster_and_its_python_reaches_the_workers(
    world: World, master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"conn_type": "spark", "host": master.rpartition(":")[0], "port": int(master.rpartition(":")[2])}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    # A Python function per row runs in the workers' Python: the user's module must have travelled there.
    transform = world.transform(
        "from pyspark.sql import functions as F\n"
        "def shout(text):\n    return text.upper()\n"
        "def transform(batch):\n"
        "    return batch.sources['orders'].withColumn('loud', F.udf(shout)('note'))\n"
    )
    job, code = world.job(transform, [world.land("a.json", [{"id": 1, "note": "x"}, {"id": 2, "note": "y"}])])
    handle = world.start(job, code)
    assert handle["master"] == master
    world.engine.result(handle)
    manifest = world.sink.publish(world.key, 1)
    folder = world.sink.root / "lane=live" / "batch_id=0"
    rows = [json.loads(line) for name in manifest.files for line in (folder / name).read_text().splitlines()]
    assert sorted((row["id"], row["loud"]) for row in rows) == [(1, "X"), (2, "Y")]
