"""What becomes of the frames of a job graph's pipeline, in a session of this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.job import Flow, FlowNode, Job, Read, Transform
from airflow_provider_microbatch.sinks import OpenSink, SinkContext
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from tests.runtime.jobs import BATCH, EXPECTED, land, make_job
from tests.support.local_spark import local_spark

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with local_spark() as session:
        yield session


def read_of(name: str, *paths: str, schema: str | None = "id long, note string") -> Read:
    arguments = {
        "name": name,
        "format": "json",
        "schema": schema,
        "options": {},
        "groups": [{"paths": list(paths), "base_path": None}] if paths else [],
    }
    return Read(reader="airflow_provider_microbatch.runtime.files:read", arguments=arguments)


def call(function: str) -> Transform:
    return Transform(module="tests.runtime.shop", function=function)


FLOW = Flow(
    nodes=(
        FlowNode(name="kept", inputs=("orders",), transform=call("keep_orders"), partitions=3),
        FlowNode(name="people", inputs=("users", "guests")),
        FlowNode(name="paired", inputs=("kept", "people"), transform=call("pair")),
    ),
    outputs={"orders": "kept", "people": "people", "pairs": "paired"},
    partitions={"users": 2},
)


@pytest.fixture
def sinks(tmp_path: Path) -> Sinks:
    return Sinks({name: FileSink(str(tmp_path / name)) for name in FLOW.outputs})


@pytest.fixture
def opened(sinks: Sinks) -> OpenSink:
    return sinks.open(SinkContext())


def job_of(sinks: Sinks, tmp_path: Path, **changes: Any) -> Job:
    rows = {"users": [{"id": 1, "note": "user"}], "guests": [{"note": "guest", "id": 2}]}
    sources = {"orders": read_of("orders", land(tmp_path / "orders-in"))}
    sources |= {name: read_of(name, land(tmp_path / f"{name}-in", found)) for name, found in rows.items()}
    return make_job(sinks, None, [], **{"transform": FLOW, "sources": sources, **changes})


def test_each_sink_gets_what_flows_into_it(spark: Any, sinks: Sinks, opened: OpenSink, tmp_path: Path) -> None:
    job = job_of(sinks, tmp_path)
    assert Job.from_json(job.to_json()) == job
    run_job(spark, job)
    published = opened.publish(EXPECTED, 1)
    ids = {name: sorted(row.id for row in spark.read.parquet(str(tmp_path / name)).collect()) for name in FLOW.outputs}
    assert ids == {"orders": [1, 2, 3], "people": [1, 2], "pairs": [1, 2]}
    notes = {row.id: row.note for row in spark.read.parquet(str(tmp_path / "people")).collect()}
    assert notes == {1: "user", 2: "guest"}
    assert published.result["numInputRows"] == {"orders": 3, "users": 1, "guests": 1}
    assert published.result["numOutputRowsBySink"] == {"orders": 3, "people": 2, "pairs": 2}


def test_the_rows_come_divided_as_it_says(spark: Any, sinks: Sinks, opened: OpenSink, tmp_path: Path) -> None:
    run_job(spark, job_of(sinks, tmp_path))
    manifest = opened.tables[0].manifest(BATCH, 1)
    assert manifest is not None
    assert len([name for name in manifest.files if "part-" in name]) == 3


def test_a_source_without_data_stops_only_what_flows_from_it_alone(
    spark: Any, sinks: Sinks, opened: OpenSink, tmp_path: Path
) -> None:
    sources = dict(job_of(sinks, tmp_path).sources)
    del sources["orders"], sources["guests"]
    absent = {name: f"{name} has had no data." for name in ("orders", "guests")}
    result = run_job(spark, job_of(sinks, tmp_path, sources=sources, absent=absent))
    opened.publish(EXPECTED, 1)
    assert [row.id for row in spark.read.parquet(str(tmp_path / "people")).collect()] == [1]
    assert result["numOutputRowsBySink"] == {"orders": 0, "people": 1, "pairs": 1}
    assert any("no source has a frame for 'orders'" in text for text in result["warnings"])


def test_who_failed_is_named(spark: Any, sinks: Sinks, opened: OpenSink, tmp_path: Path) -> None:
    nodes = (*FLOW.nodes[:2], FlowNode(name="paired", inputs=("kept",), transform=call("pair")))
    broken = Flow(nodes=nodes, outputs=FLOW.outputs)
    with pytest.raises(BatchFailure) as failure:
        run_job(spark, job_of(sinks, tmp_path, transform=broken))
    assert "transform 'paired'" in str(failure.value)
    assert "no source 'people'; its sources are: 'kept'" in str(failure.value)
    assert opened.manifest(BATCH, 1) is None


def test_the_columns_of_a_union_have_to_be_the_same(spark: Any, sinks: Sinks, tmp_path: Path) -> None:
    sources = dict(job_of(sinks, tmp_path).sources)
    sources["guests"] = read_of("guests", land(tmp_path / "odd", [{"id": 2}]), schema="id long")
    with pytest.raises(BatchFailure) as failure:
        run_job(spark, job_of(sinks, tmp_path, sources=sources))
    assert "note" in str(failure.value)
