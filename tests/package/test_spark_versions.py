"""Every other Spark that the README names runs a batch from plan to commit: our runtime, shipped by this environment,
under the spark-submit of the other. The locked one does so in tests of every kind.

4.0 and 4.1 may lie beside the package; later ones, which not every connector has jars for, run on the cluster's side.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.engines import packaging
from airflow_provider_microbatch.engines.code import resolve_code
from airflow_provider_microbatch.engines.environment import NEWEST, OLDEST
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.execution.engine import Code, EngineState, Handle
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.stores.location import open_store
from tests.environments import spark_environment

ROOT = Path(__file__).resolve().parents[2]
LOCKED = "4.1.3"
OTHERS = ("4.0.4",)
BESIDE = (*OTHERS, LOCKED)
CLUSTER_ONLY = ("4.2.0", "4.3.0")

TRANSFORM = """
def transform(batch):
    from pyspark.sql import functions as f
    return batch.sources["orders"].withColumn("doubled", f.col("id") * 2)
"""


class OtherSpark:
    """Runs a job by the spark-submit beside a given python."""

    name = "other-spark"

    def __init__(self, python: Path) -> None:
        self._python = python
        self._ended: dict[str, subprocess.CompletedProcess[str]] = {}

    def handle(self, *, pipeline: str, key: BatchKey, epoch: int) -> Handle:
        return {"engine": self.name, "tag": f"microbatch-{uuid4()}"}

    def start(self, handle: Handle, job: Job, code: Code) -> None:
        conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}
        shipment = packaging.pack(tag=handle["tag"], job=job, code_files=code.files, conf=conf, base=None)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        try:
            self._ended[handle["tag"]] = subprocess.run(
                [
                    *("spark-submit", "--master", "local[1]", "--properties-file", str(shipment.properties)),
                    *("--py-files", ",".join(map(str, shipment.py_files)), "--files", str(shipment.job)),
                    *(str(shipment.application), str(shipment.job)),
                ],
                env={**kept, "PATH": f"{self._python.parent}{os.pathsep}{kept['PATH']}"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
        finally:
            packaging.unpack(handle["tag"])

    def result(self, handle: Handle) -> None:
        ended = self._ended[handle["tag"]]
        if ended.returncode != 0:
            raise EngineError(f"{ended.stdout}\n{ended.stderr}")

    def poll(self, handle: Handle) -> EngineState:
        return EngineState.UNKNOWN

    def cancel(self, handle: Handle) -> bool:
        return False


@pytest.mark.spark
@pytest.mark.parametrize("version", [*OTHERS, *CLUSTER_ONLY])
def test_a_batch_runs_from_plan_to_commit(version: str, tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    (landing / "1.json").write_text("".join(json.dumps({"id": number}) + "\n" for number in range(5)))
    (tmp_path / "orders_job.py").write_text(TRANSFORM)
    pipeline = Pipeline(
        "orders",
        checkpoint=str(tmp_path / "checkpoint"),
        sources={"orders": FileSource(str(landing), format="json", schema="id long")},
        transform="orders_job.py:transform",
        sink=FileSink(str(tmp_path / "lake"), format="json"),
    )
    checkpoint = Checkpoint(open_store(pipeline.checkpoint), sources=["orders"])
    code, transform = resolve_code(pipeline.transform, base=tmp_path)
    summary = Execution(pipeline=pipeline, checkpoint=checkpoint).run(
        run=RunIdentity(dag_id="orders", run_id="run-0", task_id="micro_batch"),
        engine=OtherSpark(spark_environment(version)),
        code=code,
        transform=transform,
        should_stop=lambda: False,
    )
    assert summary is not None
    assert (summary.state, summary.rows_in, summary.rows_out) == ("committed", {"orders": 5}, 5)
    batch = tmp_path / "lake" / "lane=live" / "batch_id=0"
    rows = [json.loads(line) for path in batch.glob("*.json") for line in path.read_text().splitlines()]
    assert sorted((row["id"], row["doubled"]) for row in rows) == [(number, 2 * number) for number in range(5)]
    said = "".join(path.read_text() for path in (batch / "_manifest").glob("part-*"))
    assert f'"sparkVersion": "{version}"'.replace(" ", "") in said.replace(" ", "")


def test_the_versions_tried_are_those_the_package_and_its_readme_name() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    limits = re.search(r'"pyspark>=4\.(\d+),<=(4\.(\d+)\.\d+)', project)
    assert limits is not None
    assert f'"pyspark-client>=4.{limits[1]},<={limits[2]}"' in project
    assert limits[2] == NEWEST == LOCKED
    assert f"4.{limits[1]}.0" == OLDEST
    named = [f"4.{minor}" for minor in range(int(limits[1]), int(limits[3]) + 1)]
    assert [version.rpartition(".")[0] for version in BESIDE] == named
    readme = (ROOT / "README.md").read_text()
    for version in (*BESIDE, *CLUSTER_ONLY):
        assert version in readme, version
