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
from typing import Any

import psutil
import pytest

from airflow_provider_microbatch.engines import packaging, processes
from airflow_provider_microbatch.engines.spark_submit import SparkSubmitEngine
from airflow_provider_microbatch.exceptions import EngineError, ForeignBatchError
from airflow_provider_microbatch.execution.engine import EngineState
from airflow_provider_microbatch.execution.identity import planned_identity
from airflow_provider_microbatch.runtime.job import Read, Requirements
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.upkeep.commands.start_behind import plan_start_behind
from tests.engines.conftest import World
from tests.execution.maintaining import applied
from tests.execution.world import World as Pipelines
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark


def test_a_job_leaves_a_stage_with_a_manifest(world: World) -> None:
    transform = world.transform(
        "from pyspark.sql import functions as F\n"
        "def transform(batch):\n"
        "    rows = batch.sources['orders']\n"
        "    return rows.withColumn('at', F.lit(batch.timestamp.isoformat())).where('id > 1')\n"
    )
    path = world.land("a b%20ü.json", [{"id": 1, "note": "x"}, {"id": 2, "note": "y"}, {"id": 3, "note": "z"}])
    job, code = world.job(
        transform, [path], conf={"spark.sql.shuffle.partitions": "3", "spark.sql.warehouse.dir": "/x"}
    )
    handle = world.start(job, code)
    assert world.engine.poll(handle) is EngineState.RUNNING
    world.engine.result(handle)
    assert world.engine.poll(handle) is EngineState.SUCCEEDED

    manifest = world.sink.manifest(world.batch, 1)
    assert manifest is not None
    assert manifest.result["numInputRows"] == {"orders": 3}
    assert manifest.result["numOutputRows"] == 2
    assert manifest.result["batchId"] == 0
    assert set(manifest.result["durationMs"]) == {"read", "transform", "write", "total"}
    published = world.sink.publish(world.expected, 1)
    assert published == manifest
    folder = world.sink.root / "lane=live" / "batch_id=0"
    rows = [json.loads(line) for name in manifest.files for line in (folder / name).read_text().splitlines()]
    assert [row["id"] for row in rows] == [2, 3]
    assert {row["at"] for row in rows} == {"2023-11-14T22:13:20.123000+00:00"}
    assert not processes.find(handle["tag"])
    assert not packaging.folder_of(handle["tag"]).exists()


def test_a_driver_has_the_pyspark_that_is_installed_and_python_functions_run(world: World) -> None:
    transform = world.transform(
        "import pyspark\n"
        "from pyspark.sql import functions as F\n"
        "twice = F.udf(lambda number: number * 2, 'long')\n"
        "def transform(batch):\n"
        "    where = F.lit(pyspark.__file__)\n"
        "    return batch.sources['orders'].select(twice('id').alias('id'), where.alias('where'))\n"
    )
    job, code = world.job(transform, [world.land("a.json", [{"id": 21}])])
    world.engine.result(world.start(job, code))
    (name,) = world.sink.publish(world.expected, 1).files
    row = json.loads((world.sink.root / "lane=live" / "batch_id=0" / name).read_text())
    # From the zip of it that spark-submit puts first, each driver would compile all of it.
    assert row == {"id": 42, "where": importlib.import_module("pyspark").__file__}


SLOW = "from pathlib import Path\nimport time\ndef transform(batch):\n    Path({flag!r}).touch()\n    time.sleep(600)\n"


def slow_job(world: World) -> tuple[dict[str, Any], Path]:
    """A job whose transform has begun and will not end."""
    flag = world.landing.parent / "begun"
    transform = world.transform(SLOW.format(flag=str(flag)))
    job, code = world.job(transform, [world.land("a.json", [{"id": 1}])])
    handle = world.start(job, code)
    wait_until(lambda: flag.exists() or world.engine.poll(handle) is not EngineState.RUNNING)
    assert flag.exists()
    return handle, flag


def runs(process: psutil.Process) -> bool:
    """An orphan that has ended may stay a zombie until its new parent looks; a zombie runs nothing."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


READER = """
from airflow_provider_microbatch.runtime.files import ReadResult

def read(spark, arguments):
    rows = [(arguments["id"], spark.conf.get("spark.jars"))]
    return ReadResult(frame=spark.createDataFrame(rows, "id long, note string"), columns=("id",))
"""


def test_what_a_reader_requires_travels(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver has nothing of the reader's package but what the job says."""
    package, jar, own = tmp_path / "here" / "travelling", tmp_path / "driver.jar", tmp_path / "own.jar"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "reader.py").write_text(READER)
    for path in (jar, own):
        with zipfile.ZipFile(path, "w") as made:
            made.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    world.engine = SparkSubmitEngine(conf={"spark.ui.enabled": "false", "spark.jars": str(own)}, grace_seconds=5)
    monkeypatch.syspath_prepend(str(package.parent))
    job, code = world.job(None, [])
    requires = Requirements(modules=("travelling",), jars=(str(jar),))
    read = Read(reader="travelling.reader:read", arguments={"id": 7}, requires=requires)
    world.engine.result(world.start(replace(job, sources={"orders": read}), code))
    world.sink.publish(world.expected, 1)
    (part,) = (world.sink.root / "lane=live" / "batch_id=0").glob("*.json")
    row = json.loads(part.read_text())
    assert row["id"] == 7
    assert "driver.jar" in row["note"]
    assert "own.jar" in row["note"], "what the user names stays"


def test_a_transform_that_fails_is_reported_and_the_exit_status_says_so(world: World) -> None:
    transform = world.transform(
        "def transform(batch):\n    helper()\n\ndef helper():\n    raise ValueError('no good')\n"
    )
    job, code = world.job(transform, [world.land("a.json", [{"id": 1}])])
    handle = world.start(job, code)
    # The hook keeps the last lines of what Spark printed, maybe an executor's farewell: the cause is in the report.
    with pytest.raises(EngineError, match="exit code 1"):
        world.engine.result(handle)
    assert world.engine.poll(handle) is EngineState.FAILED
    failure = world.sink.failure(world.batch, 1)
    assert failure is not None
    assert failure["origin"] == "transform"
    assert "no good" in failure["error"]
    assert "in helper" in failure["traceback"]
    assert "runtime" not in failure["traceback"]
    assert world.sink.manifest(world.batch, 1) is None
    assert world.sink.drop_stage(world.batch, 1)


def test_a_large_plan_travels_and_an_unused_source_lets_the_driver_exit(world: World) -> None:
    transform = world.transform("def transform(batch):\n    return batch.spark.range(2)\n")
    paths = [world.land("a.json", [{"id": 1}])]
    job, code = world.job(transform, paths, conf={f"spark.sql.made.up.{n}": "x" * 100 for n in range(2000)})
    assert len(job.to_json()) > 128 * 1024
    world.engine.result(world.start(job, code))
    manifest = world.sink.manifest(world.batch, 1)
    assert manifest is not None
    assert manifest.result["numInputRows"] == {"orders": None}
    assert manifest.result["numOutputRows"] == 2


def test_a_secret_is_neither_in_an_argument_nor_in_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "hunter2 = \\ü: #!"
    conf = {"spark.ui.enabled": "false", "spark.hadoop.fs.s3a.secret.key": secret}
    world.engine = SparkSubmitEngine(conf=conf, env_vars={"MY_TOKEN": "token-77"}, grace_seconds=5)
    flag = world.landing.parent / "begun"
    transform = world.transform(
        "import os, time\nfrom pathlib import Path\n"
        "def transform(batch):\n"
        "    value = batch.spark.conf.get('spark.hadoop.fs.s3a.secret.key')\n"
        f"    Path({str(flag) + '.part'!r}).write_text(value + os.environ['MY_TOKEN'])\n"
        f"    os.rename({str(flag) + '.part'!r}, {str(flag)!r})\n"
        "    time.sleep(600)\n"
    )
    job, code = world.job(transform, [world.land("a.json", [{"id": 1}])])
    handle = world.start(job, code)
    wait_until(lambda: flag.exists() or world.engine.poll(handle) is not EngineState.RUNNING)
    assert flag.read_text() == secret + "token-77"
    running = processes.find(handle["tag"])
    assert len(running) >= 2
    arguments = " ".join(argument for process in running for argument in process.cmdline())
    folder = packaging.folder_of(handle["tag"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "spark.properties").stat().st_mode) == 0o600
    assert world.engine.cancel(handle)
    for hidden in ("hunter2", "token-77"):
        assert hidden not in arguments
        assert hidden not in caplog.text


def test_cancel_ends_the_driver_and_its_python(world: World) -> None:
    handle, _ = slow_job(world)
    running = processes.find(handle["tag"])
    names = {process.name() for process in running}
    assert "java" in names
    assert any(name.startswith("python") for name in names)
    assert all(process.pid != os.getpid() for process in running)
    assert world.engine.cancel(handle) is True
    assert not any(runs(process) for process in running)
    assert not packaging.folder_of(handle["tag"]).exists()
    with pytest.raises(EngineError):
        world.engine.result(handle)
    assert world.engine.cancel(handle) is False


LAUNCHER = """
import json, sys
from airflow_provider_microbatch.engines.spark_submit import SparkSubmitEngine
from airflow_provider_microbatch.execution.engine import Code
from airflow_provider_microbatch.runtime.job import Job
given = json.load(open(sys.argv[1]))
engine = SparkSubmitEngine(conf={"spark.ui.enabled": "false"})
engine.start(given["handle"], Job.from_json(given["job"]), Code(files=tuple(given["files"])))
engine.result(given["handle"])
"""


def test_an_orphan_is_found_and_ended_by_another_process(world: World, tmp_path: Path) -> None:
    flag = tmp_path / "begun"
    job, code = world.job(world.transform(SLOW.format(flag=str(flag))), [world.land("a.json", [{"id": 1}])])
    handle = dict(world.engine.handle(pipeline="orders", key=world.key, epoch=1))
    world.tags.append(handle["tag"])
    given = tmp_path / "given.json"
    given.write_text(json.dumps({"handle": handle, "job": job.to_json(), "files": code.files}))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen([sys.executable, "-c", LAUNCHER, str(given)], env=environment) as task:
        wait_until(lambda: flag.exists() or task.poll() is not None)
        task.kill()
    assert flag.exists()
    assert world.engine.poll(handle) is EngineState.RUNNING
    running = processes.find(handle["tag"])
    stdins = {str(Path(f"/proc/{process.pid}/fd/0").readlink()) for process in running if process.name() == "java"}
    assert stdins == {"/dev/null"}
    assert world.engine.cancel(handle) is True
    assert world.engine.poll(handle) is EngineState.UNKNOWN
    assert not any(runs(process) for process in running)
    assert not packaging.folder_of(handle["tag"]).exists()


def test_a_batch_that_spark_submit_ran_is_known_by_who_made_it(spark_default: None, tmp_path: Path) -> None:
    """A new checkpoint on a table that was kept, as a user meets it."""
    sink = FileSink(str(tmp_path / "lake"), format="json")
    engine: Any = SparkSubmitEngine(conf={"spark.ui.enabled": "false"}, grace_seconds=5)
    old, new = Pipelines(tmp_path / "old", sink=sink), Pipelines(tmp_path / "new", sink=sink)
    old.land(1)
    new.land(7)
    assert old.run(0, engine) is not None
    found = old.published()
    assert found is not None
    assert found.identity == planned_identity(old.checkpoint, found.key)
    with pytest.raises(ForeignBatchError, match=f"published by pipeline 'orders' .checkpoint {old.checkpoint_id}"):
        new.run(0, engine)
    applied(new, lambda drafting: plan_start_behind(drafting, allow_reread=False))
    assert new.run(0, engine) is not None
    new.lake = tmp_path / "lake"
    assert new.table() == {0: [1], 1: [7]}
