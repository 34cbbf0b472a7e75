"""Columns as DDL, read without a JVM, are those that Spark reads."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_microbatch.runtime.ddl import parse_columns
from tests.support.local_spark import local_spark

TEXTS = [
    "id long, name string",
    "id BIGINT NOT NULL COMMENT 'the id', `a b``c`: INT",
    "a tinyint, b smallint, c integer, d float, e real, f double, g boolean, h binary, i date",
    "a timestamp, b timestamp_ltz, c timestamp_ntz, d decimal, e decimal(5), f numeric(12, 2), g variant, h void",
    "a char(3), b varchar(20)",
    "a array<struct<b: map<string, array<int>>, c: decimal(3,1) NOT NULL>>, d map<int, struct<e: date COMMENT 'x'>>",
    "a interval day to second, b interval year to month, c interval hour",
    "a struct<>, b string",
]


@pytest.mark.spark
def test_it_reads_what_spark_reads() -> None:
    from pyspark.sql.types import StructType

    with local_spark():
        for text in TEXTS:
            sparks: Any = StructType.fromDDL(text)
            assert StructType.fromJson(parse_columns(text)) == sparks, text


@pytest.mark.parametrize(
    "text", ["id", "id lng", "id long,", "id array<int", "id decimal(a)", "a int b int", "a int; b"]
)
def test_what_it_does_not_understand_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="without a JVM"):
        parse_columns(text)


@given(st.text(max_size=30))
def test_no_text_makes_it_fail_otherwise(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_columns(text)
