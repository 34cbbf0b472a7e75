"""Changes that spark-submit has staged are merged into a Delta table, and Delta's own Spark reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import MicroBatchError
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.checks import DROP, FAIL, Checks, Expectation
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sources.file import FileSource
from tests.airflow_face.support import context
from tests.environments import jars
from tests.runtime.jobs import EXPECTED, land, make_job
from tests.sinks.stages import batch_of, expect
from tests.sinks.versions_by_spark import (
    CHANGES,
    MERGE,
    SCHEMA,
    VERSIONED,
    check_nothing_forgotten_comes_back,
    check_versions_of_now_and_of_then,
)
from tests.support.local_spark import DELTA, local_spark

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    own = [jar for jar in jars("delta") if jar.name.startswith(("delta-", "RoaringBitmap", "shims", "unitycatalog"))]
    with local_spark(jars=own, conf=DELTA) as session:
        yield session


def test_changes_of_spark_submit_end_as_their_newest_and_spark_reads_them(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    (tmp_path / "bundle").mkdir()
    lake, landing = tmp_path / "customers", tmp_path / "landing"
    land(landing, CHANGES)
    pipeline = Pipeline(
        "customers",
        checkpoint=str(tmp_path / "checkpoint"),
        sources={"changes": FileSource(str(landing), format="json", schema=SCHEMA)},
        sink=DeltaSink(str(lake), merge=MERGE),
    )
    operator = MicroBatchOperator(
        task_id="micro_batch", pipeline=pipeline, conn_id="spark_default", conf={"spark.ui.enabled": "false"}
    )

    assert operator.execute(context(tmp_path / "bundle"))["state"] == "committed"
    read = spark.read.format("delta").load(str(lake))
    assert read.columns == ["id", "name", "at", "lane", "batch_id"]
    assert [(row.id, row.name, row.at.year, row.batch_id) for row in read.collect()] == [(1, "Ada", 2999, 0)]


def test_spark_finds_the_versions_of_now_and_of_then(spark: Any, tmp_path: Path) -> None:
    lake = tmp_path / "history"
    sink = DeltaSink(str(lake), merge=VERSIONED).open(SinkContext())
    check_versions_of_now_and_of_then(spark, sink, f"delta.`{lake}`", landing=tmp_path / "landing")


@pytest.mark.parametrize("merge", [MERGE, VERSIONED], ids=["newest", "versions"])
def test_what_is_forgotten_leaves_no_older_state_behind(spark: Any, tmp_path: Path, merge: Merge) -> None:
    lake, landing = tmp_path / "lake", tmp_path / "landing"
    sink = DeltaSink(str(lake), merge=merge).open(SinkContext())

    def rows() -> list[tuple[str, Any]]:
        return [(row["name"], row.get("valid_to")) for row in DeltaTable(str(lake)).to_pyarrow_table().to_pylist()]

    check_nothing_forgotten_comes_back(spark, sink, rows, landing=landing)


@pytest.mark.parametrize("action", [DROP, FAIL])
def test_of_a_deletion_nothing_is_expected(spark: Any, tmp_path: Path, action: str) -> None:
    lake, landing = tmp_path / "lake", tmp_path / "landing"
    sink = DeltaSink(str(lake), merge=MERGE)
    checks = Checks(expectations=(Expectation(condition="name IS NOT NULL", action=action),))
    run_job(spark, make_job(sink, None, [land(landing, CHANGES)], schema=SCHEMA, checks=checks))
    sink.open(SinkContext()).publish(EXPECTED, 1)
    assert DeltaTable(str(lake)).to_pyarrow_table().column("name").to_pylist() == ["Ada"]


def test_values_of_all_kinds_are_the_same_after_their_file_was_written_anew(spark: Any, tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "lake"), merge=Merge(keys=("id", "day"), sequence_by=("at", "amount")))
    opened, later = sink.open(SinkContext()), batch_of(BatchKey("live", 1))
    run_job(spark, make_job(sink, "of_all_kinds", [land(tmp_path / "landing")]))
    opened.publish(EXPECTED, 1)
    # As people do, which writes their file as Spark does: with times of 96 bits.
    spark.sql(f"UPDATE delta.`{tmp_path / 'lake'}` SET half = 7 WHERE id = 3")

    def rows() -> list[Any]:
        found: list[Any] = spark.read.format("delta").load(str(tmp_path / "lake")).orderBy("id").collect()
        return found

    before = rows()
    assert [row.half for row in before] == [0.5, 0.5, 7.0]
    orders = land(tmp_path / "later", [{"id": 1, "note": "zz"}])
    stages = opened.stages_by_name(later, 1)
    run_job(spark, make_job(sink, "of_all_kinds", [orders], batch_id=1, stages=stages, identity=later.to_dict()))
    opened.publish(expect(later.key), 1)
    assert rows()[1:] == before[1:]
    assert (rows()[0].inner[0].b, rows()[0].batch_id) == ("zz", 1)


def test_a_result_without_a_key_fails_before_anything_is_written(spark: Any, tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "lake"), merge=Merge(keys=("id",), sequence_by=("lsn",)))
    with pytest.raises((BatchFailure, MicroBatchError), match="lacks lsn, by which its changes are merged"):
        run_job(spark, make_job(sink, "keep", [land(tmp_path / "landing")]))
    assert sink.open(SinkContext()).manifest(EXPECTED.identity, 1) is None
