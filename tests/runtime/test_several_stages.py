"""One job writes a frame to each of several sinks, in a session of this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from tests.runtime.jobs import BATCH, EXPECTED, land, make_job
from tests.support.local_spark import local_spark

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with local_spark() as session:
        yield session


@pytest.fixture
def sinks(tmp_path: Path) -> Sinks:
    return Sinks({"orders": FileSink(str(tmp_path / "orders")), "notes": FileSink(str(tmp_path / "notes"))})


@pytest.fixture
def orders(tmp_path: Path) -> str:
    return land(tmp_path / "landing")


def test_each_sink_gets_its_own_frame(spark: Any, sinks: Sinks, orders: str, tmp_path: Path) -> None:
    opened = sinks.open(SinkContext())
    job = make_job(sinks, "splits", [orders])
    assert Job.from_json(job.to_json()) == job
    run_job(spark, job)
    parts = {name: sink.open(SinkContext()).manifest(BATCH, 1) for name, sink in sinks.sinks.items()}
    assert all(part is not None and part.result["sink"] == name for name, part in parts.items())
    published = opened.publish(EXPECTED, 1)
    assert sorted(row.id for row in spark.read.parquet(str(tmp_path / "orders")).collect()) == [1, 2, 3]
    read = spark.read.parquet(str(tmp_path / "notes"))
    assert [(row.note, row.batch_id) for row in read.collect()] == [("_c", 0)]
    assert published.result["numInputRows"] == {"orders": 3}
    assert published.result["numOutputRows"] == 4
    assert published.result["numOutputRowsBySink"] == {"orders": 3, "notes": 1}


def test_a_read_that_the_transform_keeps_is_counted_once_for_all_sinks(spark: Any, sinks: Sinks, orders: str) -> None:
    result = run_job(spark, make_job(sinks, "splits_what_it_keeps", [orders]))
    assert result["numInputRows"] == {"orders": 3}
    assert result["numOutputRowsBySink"] == {"orders": 3, "notes": 1}


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("keep", "returned DataFrame, not a dict of DataFrames by the names of the sinks ('orders', 'notes')"),
        ("leaves_a_sink_out", "returned no frame for sink 'notes'; return an empty one"),
        ("names_another_sink", "returned a frame for 'note', which is no sink of this pipeline"),
        ("returns_none_for_a_sink", "returned for sink 'notes' None, not a DataFrame"),
    ],
)
def test_what_a_transform_can_do_wrong(spark: Any, sinks: Sinks, orders: str, function: str, said: str) -> None:
    opened = sinks.open(SinkContext())
    with pytest.raises(BatchFailure) as failure:
        run_job(spark, make_job(sinks, function, [orders]))
    assert said in str(failure.value)
    assert opened.manifest(BATCH, 1) is None
    reported = opened.failure(BATCH, 1)
    assert reported is not None
    assert reported["origin"] == "transform"


def test_a_frame_that_cannot_be_written_names_its_sink(spark: Any, tmp_path: Path, orders: str) -> None:
    notes = FileSink(str(tmp_path / "notes"), partition_by=("no_such_column",))
    sinks = Sinks({"orders": FileSink(str(tmp_path / "orders")), "notes": notes})
    with pytest.raises(BatchFailure, match="no_such_column"):
        run_job(spark, make_job(sinks, "splits", [orders]))
    assert sinks.open(SinkContext()).manifest(BATCH, 1) is None
