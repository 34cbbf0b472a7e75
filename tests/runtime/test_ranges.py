"""Ranges of sources that users write in Python, read by a Spark of this process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs.orders_api import OrdersApi
from parted_numbers import PartedNumbers

from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.polling import read
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources import OpenSource, ReadLimit, Source, SourceContext
from airflow_provider_microbatch.sources.python import PythonSource
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.runtime.jobs import EXPECTED, make_job
from tests.support.local_spark import another_jvm, local_spark
from tests.support.orders_api import OrdersServer, serving

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    # Python workers that another session has left have imported other modules of these names.
    with another_jvm(), local_spark(cores=2) as session:
        # As an engine ships them.
        for name in ("dags/jobs", "tests/user_code"):
            folder = ROOT / name
            archive = tmp_path_factory.mktemp("shipped") / folder.name
            base = folder.name if folder.name == "jobs" else "."
            root = folder.parent if folder.name == "jobs" else folder
            session.sparkContext.addPyFile(shutil.make_archive(str(archive), "zip", root, base))
        yield session


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[Source], OpenSource]:
    def opened(source: Source) -> OpenSource:
        store = PosixStore(tmp_path / "checkpoint")
        return source.open(SourceContext(name="orders", log=store, state=store, clock_ms=lambda: 0))

    return opened


@pytest.fixture
def rows(spark: Any, tmp_path: Path) -> Callable[[OpenSource, str | None, str | None], list[Any]]:
    """The rows that a job over a range leaves in a table, and over which partitions they came."""

    def rows(source: OpenSource, start: str | None, end: str | None) -> list[Any]:
        sink = FileSink(str(tmp_path / "lake"), format="json")
        run_job(spark, make_job(sink, None, [], sources={"orders": source.read(start, end)}))
        manifest = sink.publish(EXPECTED, 1)
        (counted,) = manifest.result["numInputRows"].values()
        found = spark.read.json(str(sink.root)).collect() if counted else []
        assert counted == len(found)
        return sorted(found)

    return rows


def test_an_api_is_read_from_offset_to_offset(rows: Any, opened: Any) -> None:
    with serving(OrdersServer()) as server:
        server.add(*range(10))
        source = opened(OrdersApi(server.url, page=3))
        found = rows(source, "2", "9")
    assert [(row.id, row.amount, row.ts[:19]) for row in found] == [
        (id, float(id), f"2026-11-24T06:00:{id:02}") for id in range(2, 9)
    ]
    assert server.asked["GET /orders"] == 3


def test_an_empty_range_has_the_schema_and_no_row_and_asks_nobody(spark: Any, opened: Any) -> None:
    source = opened(OrdersApi("http://127.0.0.1:1"))
    frame = read(spark, source.read("7", "7").arguments).frame
    assert (frame.count(), frame.columns) == (0, ["id", "customer", "amount", "ts"])


def test_executors_read_partitions_beside_each_other(rows: Any, opened: Any, tmp_path: Path) -> None:
    (tmp_path / "head").write_text("25")
    source = opened(PartedNumbers(str(tmp_path / "head")))
    found = rows(source, None, source.latest_offset(None))
    assert [(row.id, row.half) for row in found] == [(number, number / 2) for number in range(25)]
    assert os.getpid() not in {row.process for row in found}


@pytest.mark.parametrize("reader", ["Numbers", "LimitedNumbers", "SimpleNumbers"])
def test_a_stream_of_pyspark_is_read_by_its_own_partitions(rows: Any, opened: Any, tmp_path: Path, reader: str) -> None:
    (tmp_path / "head").write_text("5")
    source = opened(PythonSource(f"number_streams:{reader}", options={"path": str(tmp_path / "head")}))
    end = source.latest_offset('{"n": 3}')
    (tmp_path / "head").write_text("9")
    assert [(row.id, row.note) for row in rows(source, '{"n": 3}', end)] == [(4, "n4"), (5, "n5")]


def test_it_is_a_failure_of_reading_if_the_users_code_raises(spark: Any, opened: Any, tmp_path: Path) -> None:
    source = opened(OrdersApi("http://127.0.0.1:1"))
    sink = FileSink(str(tmp_path / "lake"), format="json")
    with pytest.raises(BatchFailure) as failure:
        run_job(spark, make_job(sink, None, [], sources={"orders": source.read("0", "7")}))
    assert failure.value.origin == "read"
    assert "source 'orders'" in str(failure.value.error)


def test_limits_reach_a_reader_of_the_new_signature(opened: Any, tmp_path: Path) -> None:
    (tmp_path / "head").write_text("9")
    source = opened(PythonSource("number_streams:LimitedNumbers", options={"path": str(tmp_path / "head")}))
    assert source.latest_offset('{"n": 2}', ReadLimit(rows=3)) == '{"n": 5}'
