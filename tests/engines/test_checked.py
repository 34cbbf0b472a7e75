"""Dead letters from the pipeline to the command line, which runs them again by the real spark-submit."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.engines.code import resolve_code
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.file import FileSource
from tests.execution.world import World, run_identity
from tests.support.local_spark import local_spark
from tests.support.spark_engine import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TRANSFORM = """
def transform(batch):
    return batch.sources["orders"].withColumn("twice", batch.sources["orders"].id * 2)
"""
MEND = """
from pyspark.sql import functions as F

def mend(batch):
    letters = batch.sources["dead_letters"]
    id = F.when(letters.kind == "unparsed", F.lit(30)).otherwise(-F.get_json_object("raw", "$.id").cast("long"))
    return letters.select(id.alias("id"), (id * 2).alias("twice"))
"""


def test_rows_that_are_refused_are_counted_replayed_and_forgotten(
    tmp_path: Path, spark_default: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(
        tmp_path,
        sink=FileSink(str(tmp_path / "lake")),
        expect={"id > 0": "dead_letter"},
        dead_letters=FileSink(str(tmp_path / "letters")),
        transform="checked_orders.py:transform",
    )
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "checked_orders.py").write_text(TRANSFORM)
    (bundle / "mend_job.py").write_text(MEND)
    landed = world.landing() / "a b.json"
    landed.write_text('{"id": 1}\n{"id": -2}\n{"id": "thirty"}\n{"id": 4}\n')
    code, called = resolve_code("checked_orders.py:transform", base=bundle)
    monkeypatch.syspath_prepend(bundle)
    world.checkpoint.forgotten.add("id = 4", sinks=(), by="me@here", at_ms=1)
    with local_spark() as spark:
        engine = SparkEngine(spark)
        summary = world.execution.run(run=run_identity(0), engine=engine, code=code, transform=called)
    assert summary is not None
    assert summary.label == "batch 0 · 1 row · 2 dead letters"
    letters = ds.dataset(tmp_path / "letters", partitioning="hive").to_table().to_pylist()
    assert sorted((one["kind"], one["raw"]) for one in letters) == [
        ("refused", '{"id":-2,"twice":-4}'),
        ("unparsed", '{"id": "thirty"}'),
    ]
    assert {one["place"] for one in letters} == {f"file:{str(landed).replace(' ', '%20')}"}

    where = world.pipeline.checkpoint
    capsys.readouterr()
    assert main(["dead-letters", where, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["batch"], told["dead_letters"], told["replayed_as"]) == ("live/0", 2, None)
    assert [(one["what"], one["rows"]) for one in told["reasons"]] == [
        ("source 'orders' does not parse", 1),
        ("id > 0", 1),
    ]
    replay = ["dead-letters", where, "--replay", "mend_job.py:mend", "--base", str(bundle)]
    assert main(replay) == 0
    assert "2 → 2" in capsys.readouterr().out
    assert main(replay) == 0
    assert "no dead letters that were not run again" in capsys.readouterr().out
    assert main(["dead-letters", where]) == 0
    assert "dead-letters/0" in capsys.readouterr().out
    table = ds.dataset(tmp_path / "lake", partitioning="hive").to_table()
    assert sorted(table["id"].to_pylist()) == [1, 2, 30]


def test_the_schema_of_a_source_is_needed_for_what_does_not_parse() -> None:
    assert FileSource("/data/landing", format="parquet").refuses_dead_letters is None
    assert "schema=" in str(FileSource("/data/landing").refuses_dead_letters)
