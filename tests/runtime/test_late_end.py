"""A range that is read without an end: where it has ended is told when the stage is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from acme_microbatch.counter import CounterSource

from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources import LATE, OpenSource, SourceContext
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.runtime.jobs import EXPECTED, make_job
from tests.support.local_spark import local_spark

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with local_spark() as session:
        yield session


@pytest.fixture
def counter(tmp_path: Path) -> OpenSource:
    store = PosixStore(tmp_path / "checkpoint")
    context = SourceContext(name="numbers", log=store, state=store, clock_ms=lambda: 1_795_000_000_000)
    return CounterSource(str(tmp_path / "head"), late=True).open(context)


def test_sparks_own_attempt_tells_where_it_came_to(spark: Any, counter: OpenSource, tmp_path: Path) -> None:
    (tmp_path / "head").write_text("3")
    assert counter.latest_offset('{"n": 1}') is LATE
    read = counter.read_late('{"n": 1}')
    (tmp_path / "head").write_text("5")
    sink = FileSink(str(tmp_path / "lake"), format="json")
    run_job(spark, make_job(sink, None, [], sources={"numbers": read}))
    manifest = sink.publish(EXPECTED, 1)
    assert counter.resolve('{"n": 1}', manifest.result["read"]["numbers"]) == '{"n": 5}'
    assert manifest.result["numInputRows"] == {"numbers": 4}
    assert sorted(row.id for row in spark.read.json(str(sink.root)).collect()) == [2, 3, 4, 5]
