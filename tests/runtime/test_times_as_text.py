"""Times of files that are text: to the microsecond, as whoever writes them reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.sinks.file import FileSink
from tests.runtime.jobs import EXPECTED, land, make_job
from tests.runtime.shop import OF_TIMES
from tests.support.local_spark import local_spark

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with local_spark() as session:
        yield session


@pytest.fixture
def orders(tmp_path: Path) -> str:
    return land(tmp_path / "landing")


@pytest.mark.parametrize("format", ["parquet", "json", "csv", "orc"])
def test_times_come_back_to_the_microsecond_beside_files_of_before(
    spark: Any, tmp_path: Path, orders: str, format: str
) -> None:
    """Files of before have times as Spark writes them by itself: cut to the millisecond, where they are text."""
    sink, before = FileSink(str(tmp_path / "lake"), format=format), str(tmp_path / "before")
    run_job(spark, make_job(sink, "of_times", [orders]))
    sink.publish(EXPECTED, 1)
    folder = str(sink.root / "lane=live" / "batch_id=0")
    times = spark.sql(OF_TIMES)
    times.write.format(format).save(before)
    reader = spark.read.format(format).schema(times.schema)
    ours, theirs, both = (reader.load(where).collect() for where in (folder, before, [folder, before]))
    assert sorted(ours) == sorted(times.collect())
    assert sorted(both) == sorted([*ours, *theirs])


@pytest.mark.parametrize("format", ["json", "csv"])
def test_times_are_what_the_parser_of_before_spark_3_takes_them_for(
    spark: Any, tmp_path: Path, orders: str, format: str
) -> None:
    """To whom 123456 behind the second is two minutes."""
    sink = FileSink(str(tmp_path / "lake"), format=format)
    times = spark.sql(OF_TIMES).select("at")
    try:
        spark.conf.set("spark.sql.legacy.timeParserPolicy", "legacy")
        run_job(spark, make_job(sink, "of_times", [orders]))
        sink.publish(EXPECTED, 1)
        read = spark.read.format(format).schema(times.schema).load(str(sink.root / "lane=live" / "batch_id=0"))
        assert sorted(row.at.replace(microsecond=0) for row in read.collect()) == sorted(
            row.at.replace(microsecond=0) for row in times.collect()
        )
    finally:
        spark.conf.unset("spark.sql.legacy.timeParserPolicy")


def test_times_have_the_form_that_the_sink_names(spark: Any, tmp_path: Path, orders: str) -> None:
    sink = FileSink(str(tmp_path / "lake"), format="csv", options={"TIMESTAMPFORMAT": "yyyy"})
    run_job(spark, make_job(sink, "of_times", [orders]))
    lines = [line for path in sink.root.rglob("*.csv") for line in path.read_text().splitlines()]
    assert sorted(lines) == ["1970,1970-01-01T00:00:00.000000", "2023,2023-11-14T22:13:20.123456"]
