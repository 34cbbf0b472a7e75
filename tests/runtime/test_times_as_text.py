"""Times that Spark makes text of: to the microsecond, as the session that made it reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_microbatch.runtime.write import times_of
from tests.runtime.shop import OF_TIMES
from tests.support.local_spark import local_spark

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with local_spark() as session:
        yield session


@pytest.mark.parametrize("policy", ["CORRECTED", "legacy"])
def test_times_are_read_as_they_were_by_whatever_parser_the_session_has(spark: Any, policy: str) -> None:
    """To that of before Spark 3 123456 behind the second is two minutes: it is given milliseconds."""
    from pyspark.sql import functions as F

    times = spark.sql(OF_TIMES)
    try:
        spark.conf.set("spark.sql.legacy.timeParserPolicy", policy)
        text = F.to_json(F.struct("at"), times_of(spark))
        read = times.select(F.from_json(text, "at timestamp").alias("row")).select("row.at").collect()
    finally:
        spark.conf.unset("spark.sql.legacy.timeParserPolicy")
    lost = 1_000 if policy == "legacy" else 1
    cut = [row.at.replace(microsecond=row.at.microsecond // lost * lost) for row in times.collect()]
    assert sorted(row.at for row in read) == sorted(cut)
