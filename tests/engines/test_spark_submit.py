"""Jobs through the real spark-submit."""

from __future__ import annotations

import importlib
import json
import logging
import os
import stat
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from airflow_provider_microbatch.engines import packaging, processes
from airflow_provider_microbatch.engines.spark_submit import SparkSubmitEngine
from airflow_provider_microbatch.execution.engine import EngineState
from airflow_provider_microbatch.runtime.job import Read, Requirements
from tests.engines.conftest import World
from tests.environments import QUICK_JAVA, spark_classes
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark


READER = """
from airflow_provider_microbatch.runtime.files import ReadResult

def read(spark, arguments):
    rows = [(arguments["id"], spark.conf.get("spark.jars"))]
    return ReadResult(frame=spark.createDataFrame(rows, "id long, jars string"), columns=("id",))
"""

TRANSFORM = """
import pyspark
from pyspark.sql import functions as F

twice = F.udf(lambda number: number * 2, "long")

def transform(batch):
    orders, jars = (batch.sources[name] for name in ("orders", "travelling"))
    at, where = F.lit(batch.timestamp.isoformat()), F.lit(pyspark.__file__)
    return orders.where("id > 1").select(twice("id").alias("id"), at.alias("at"), where.alias("where")).join(jars, "id")
"""

SHARED = "org.apache.spark.deploy.SparkSubmit source: shared objects file (top)"


def test_a_driver_has_what_its_job_says_and_leaves_a_stage_with_a_manifest(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has nothing of the reader's package but what the job says."""
    package, jar, own = tmp_path / "here" / "travelling", tmp_path / "driver.jar", tmp_path / "own.jar"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "reader.py").write_text(READER)
    for path in (jar, own):
        with zipfile.ZipFile(path, "w") as made:
            made.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    classes = tmp_path / "spark classes"
    classes.symlink_to(spark_classes())
    connection = {"conn_type": "spark", "host": "local[1]", "extra": json.dumps({"class-archive": str(classes)})}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    # The user's own options of Java stay.
    told = tmp_path / "classes.log"
    options = {"SPARK_SUBMIT_OPTS": f"{QUICK_JAVA['SPARK_SUBMIT_OPTS']} -Xlog:class+load:file={told}"}
    conf = {"spark.ui.enabled": "false", "spark.jars": str(own)}
    world.engine = SparkSubmitEngine(conf=conf, env_vars=options, grace_seconds=5)
    monkeypatch.syspath_prepend(str(package.parent))
    requires = Requirements(modules=("travelling",), jars=(str(jar),))
    travelling = Read(reader="travelling.reader:read", arguments={"id": 4}, requires=requires)
    path = world.land("a b%20ü.json", [{"id": 1, "note": "x"}, {"id": 2, "note": "y"}, {"id": 3, "note": "z"}])
    conf = {f"spark.sql.made.up.{n}": "x" * 100 for n in range(2000)}
    conf |= {"spark.sql.shuffle.partitions": "3", "spark.sql.warehouse.dir": "/x"}
    job, code = world.job(world.transform(TRANSFORM), [path], conf=conf)
    # A source that the transform does not use lets the driver exit.
    job = replace(job, sources={**job.sources, "unused": job.sources["orders"], "travelling": travelling})
    assert len(job.to_json()) > 128 * 1024
    handle = world.start(job, code)
    world.engine.result(handle)

    manifest = world.sink.manifest(world.batch, 1)
    assert manifest is not None
    assert manifest.result["numInputRows"] == {"orders": 3, "unused": None, "travelling": 1}
    assert manifest.result["numOutputRows"] == 1
    assert manifest.result["batchId"] == 0
    assert set(manifest.result["durationMs"]) == {"read", "transform", "write", "total"}
    assert world.sink.publish(world.expected, 1) == manifest
    (part,) = (world.sink.root / "lane=live" / "batch_id=0").glob("*.json")
    row = json.loads(part.read_text())
    jars = row.pop("jars")
    # From the zip of pyspark that spark-submit puts first, each driver would compile all of it.
    where = importlib.import_module("pyspark").__file__
    assert row == {"id": 4, "at": "2023-11-14T22:13:20.123000+00:00", "where": where}
    assert "driver.jar" in jars
    assert "own.jar" in jars, "what the user names stays"
    assert SHARED in told.read_text(), "the connection names an archive of classes"
    assert not processes.find(handle["tag"])
    assert not packaging.folder_of(handle["tag"]).exists()


def runs(process: psutil.Process) -> bool:
    """An orphan that has ended may stay a zombie until its new parent looks; a zombie runs nothing."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


LAUNCHER = """
import json, logging, sys
from airflow_provider_microbatch.engines.spark_submit import SparkSubmitEngine
from airflow_provider_microbatch.execution.engine import Code
from airflow_provider_microbatch.runtime.job import Job
given = json.load(open(sys.argv[1]))
logging.basicConfig(level=logging.DEBUG, force=True)
engine = SparkSubmitEngine(**given["engine"])
engine.start(given["handle"], Job.from_json(given["job"]), Code(files=tuple(given["files"])))
engine.result(given["handle"])
"""


def test_a_secret_is_neither_in_an_argument_nor_in_the_log_and_another_process_ends_an_orphan_and_its_python(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "hunter2 = \\ü: #!"
    conf = {"spark.ui.enabled": "false", "spark.hadoop.fs.s3a.secret.key": secret}
    flag, said = tmp_path / "begun", tmp_path / "said.log"
    transform = world.transform(
        "import os, time\nfrom pathlib import Path\n"
        "def transform(batch):\n"
        "    value = batch.spark.conf.get('spark.hadoop.fs.s3a.secret.key')\n"
        f"    Path({str(flag) + '.part'!r}).write_text(value + os.environ['MY_TOKEN'])\n"
        f"    os.rename({str(flag) + '.part'!r}, {str(flag)!r})\n"
        "    time.sleep(600)\n"
    )
    job, code = world.job(transform, [world.land("a.json", [{"id": 1}])])
    handle = dict(world.engine.handle(pipeline="orders", key=world.key, epoch=1))
    world.tags.append(handle["tag"])
    engine = {"conf": conf, "env_vars": {"MY_TOKEN": "token-77"}}
    given = tmp_path / "given.json"
    given.write_text(json.dumps({"engine": engine, "handle": handle, "job": job.to_json(), "files": code.files}))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", LAUNCHER, str(given)]
    with said.open("wb") as log, subprocess.Popen(command, env=environment, stdout=log, stderr=log) as task:
        wait_until(lambda: flag.exists() or task.poll() is not None)
        task.kill()
    assert flag.read_text() == secret + "token-77"
    assert world.engine.poll(handle) is EngineState.RUNNING
    running = processes.find(handle["tag"])
    java = [process for process in running if process.name() == "java"]
    assert {str(Path(f"/proc/{process.pid}/fd/0").readlink()) for process in java} == {"/dev/null"}
    assert any(process.name().startswith("python") for process in running)
    assert all(process.pid != os.getpid() for process in running)
    arguments = " ".join(argument for process in running for argument in process.cmdline())
    folder = packaging.folder_of(handle["tag"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "spark.properties").stat().st_mode) == 0o600
    assert world.engine.cancel(handle) is True
    assert world.engine.poll(handle) is EngineState.UNKNOWN
    assert not any(runs(process) for process in running)
    assert not folder.exists()
    assert world.engine.cancel(handle) is False
    logged = said.read_text() + caplog.text
    assert handle["tag"] in logged
    for hidden in ("hunter2", "token-77"):
        assert hidden not in arguments
        assert hidden not in logged
