"""Split-wise batches on real Spark: the driver is killed at a split, and the next attempt reads the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_microbatch.engines.code import resolve_code
from airflow_provider_microbatch.engines.spark_submit import SparkSubmitEngine
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.execution.engine import Code
from airflow_provider_microbatch.runtime.job import Transform
from airflow_provider_microbatch.sinks.file import FileSink
from tests.execution.world import World, run_identity
from tests.support.local_spark import local_spark
from tests.support.spark_engine import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SPLITS, ROWS, AT = 3, 5, 2

KILLED_AT = """
import os, signal
from pathlib import Path
from pyspark.sql import functions as F

def transform(batch):
    orders = batch.sources["orders"]
    if orders.inputFiles()[0].endswith({at!r}) and not Path({flag!r}).exists():
        Path({flag!r}).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return orders.withColumn("day", (F.col("id") % 3).cast("int"))
"""


def code_of(world: World, *, at: str) -> tuple[Code, Transform | None]:
    bundle = world.root / "bundle"
    bundle.mkdir()
    (bundle / "killed_at_a_split.py").write_text(KILLED_AT.format(at=at, flag=str(world.root / "killed")))
    return resolve_code("killed_at_a_split.py:transform", base=bundle)


def test_the_second_attempt_reads_what_the_first_had_not_finished(
    tmp_path: Path, spark_default: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = FileSink(str(tmp_path / "lake"), format="parquet", partition_by=("day",))
    world = World(tmp_path, split_wise=True, sink=sink, transform="killed_at_a_split.py:transform")
    for split in range(SPLITS):
        world.land(*range(split * ROWS, (split + 1) * ROWS))
    code, called = code_of(world, at=f"{AT * ROWS:06}.json")
    engine = SparkSubmitEngine(conf={"spark.ui.enabled": "false"}, grace_seconds=5)

    with pytest.raises(EngineError):
        world.execution.run(run=run_identity(0), engine=engine, code=code, transform=called)
    assert (tmp_path / "killed").exists()
    monkeypatch.syspath_prepend(tmp_path / "bundle")
    with local_spark() as spark:
        second = run_identity(0, try_number=2)
        summary = world.execution.run(run=second, engine=SparkEngine(spark), code=code, transform=called)

    assert summary is not None
    commit = world.checkpoint.commit_log.get(0)
    assert commit is not None
    assert commit.epoch == 2
    assert commit.progress["subtasks"] == {"run": SPLITS - AT, "taken": AT, "rowsTaken": AT * ROWS}
    assert commit.progress["numInputRows"] == {"orders": SPLITS * ROWS}
    assert commit.progress["numOutputRows"] == SPLITS * ROWS
    assert ids_by_day(world.lake) == {f"day={day}": [*range(day, SPLITS * ROWS, 3)] for day in range(3)}
    assert {path.name for path in (world.lake / "lane=live" / "batch_id=0").iterdir()} == {
        "_manifest", "day=0", "day=1", "day=2",
    }  # fmt: skip
    world.janitor()
    assert [path for path in (world.lake / "_staging").rglob("*") if path.is_file()] == []


def ids_by_day(lake: Path) -> dict[str, list[int]]:
    import pyarrow.parquet as pq

    found: dict[str, list[int]] = {}
    for path in sorted(lake.rglob("day=*/*.parquet")):
        found.setdefault(path.parent.name, []).extend(pq.ParquetFile(path).read()["id"].to_pylist())
    return {day: sorted(ids) for day, ids in sorted(found.items())}
