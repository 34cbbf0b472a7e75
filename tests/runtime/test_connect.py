"""The runtime uses nothing that Spark Connect lacks."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import airflow_provider_microbatch.runtime as runtime
from airflow_provider_microbatch.sinks.file import FileSink
from tests.runtime.jobs import BATCH, EXPECTED, ROWS, land, make_job
from tests.sinks.stages import make_ready
from tests.support.connect_server import connect_server

ONLY_CLASSIC = {"_jvm", "_jdf", "_jsparkSession", "_sc", "sparkContext", "SparkContext", "SparkFiles", "rdd", "RDD"}
OF_ITS_OWN_JVM = {"converted_state", "hadoop_files", "kept_columns", "own_session", "query_plan", "streaming"}
"""Of commands with a process of their own, what is refused beside a Connect server, and what is left to Spark there."""
SOURCES = sorted(path for path in Path(runtime.__file__).parent.glob("*.py") if path.stem not in OF_ITS_OWN_JVM)

CLIENT = """
import sys
from pyspark.sql import SparkSession
from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.job import Job

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
assert "connect" in type(spark).__module__
for path in sys.argv[2:]:
    try:
        run_job(spark, Job.from_json(open(path, encoding="utf-8").read()))
    except BatchFailure as failure:
        print(failure.origin, failure.error)
"""


@pytest.mark.parametrize("path", SOURCES, ids=[path.stem for path in SOURCES])
def test_no_module_names_what_connect_lacks(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert not used & ONLY_CLASSIC


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with connect_server(tmp_path) as url:
        yield url


@pytest.mark.spark
def test_the_same_jobs_leave_the_same_stages_by_spark_connect(tmp_path: Path, server: str) -> None:
    orders = land(tmp_path / "landing")
    arguments = []
    # What is counted is the write, so an action before it does no harm.
    expected = {1: ("keep", 3), 2: ("ignores_its_input", None), 3: ("counts_it_first", 3), 4: ("empties_it", 3)}
    expected[6] = ("uses_it_twice", 3)
    sink = FileSink(str(tmp_path / "lake ü"), format="json", partition_by=("note",))
    jobs = {epoch: make_job(sink, function, [orders], epoch=epoch) for epoch, (function, _) in expected.items()}
    jobs[5] = make_job(sink, "raises", [orders], epoch=5)
    conf = {"spark.microbatch.test.mark": str(tmp_path / "at work")}
    jobs[7] = make_job(sink, "never_ends", [orders], epoch=7, conf=conf)
    make_ready(sink)
    sink.fence(BATCH, 7, by="superseded by attempt 8")
    elsewhere = FileSink(str(tmp_path / "misfit"), format="json")
    jobs[8] = make_job(elsewhere, "keep", [orders], epoch=8, schema="key long, text string")
    for epoch, job in jobs.items():
        path = tmp_path / f"{epoch}.json"
        path.write_text(job.to_json(), encoding="utf-8")
        arguments.append(str(path))
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, server, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    for epoch, (_, rows_in) in expected.items():
        manifest = sink.manifest(BATCH, epoch)
        assert manifest is not None, done.stdout
        # A count that comes too late for the server's answer is unknown: tests/runtime/test_counting_connect.py.
        assert manifest.result["numInputRows"]["orders"] in (rows_in, None)
    misfit = elsewhere.manifest(BATCH, 8)
    assert misfit is not None
    told = "source orders: 3 of 3 rows have nothing in any column of its schema" in done.stderr
    assert told == (misfit.result["numInputRows"]["orders"] == 3)
    assert sink.manifest(BATCH, 5) is None
    failure = sink.failure(BATCH, 5)
    assert failure is not None
    assert failure["origin"] == "transform"
    assert "no_such_column" in failure["error"]
    assert "a later attempt has taken its place" in done.stdout
    assert sink.failure(BATCH, 7) is None
    assert "JVM stacktrace" not in failure["error"] + failure["traceback"]

    manifest = sink.publish(EXPECTED, 1)
    folder = sink.root / "lane=live" / "batch_id=0"
    assert {name: (folder / name).stat().st_size for name in manifest.files} == dict(manifest.files)
    ids = [json.loads(line)["id"] for name in manifest.files for line in (folder / name).read_text().splitlines()]
    assert sorted(ids) == [row["id"] for row in ROWS]
