"""Values of PostgreSQL are read exactly, or refused."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_microbatch.runtime.pg_texts import reader_of, takes


@pytest.mark.parametrize(
    ("spark", "text", "value"),
    [
        ("boolean", "t", True),
        ("boolean", "f", False),
        ("short", "-32768", -32768),
        ("long", "9223372036854775807", 2**63 - 1),
        ("double", "1.7976931348623157e+308", 1.7976931348623157e308),
        ("double", "-Infinity", -math.inf),
        ("decimal(38,18)", f"-{'9' * 20}.{'9' * 18}", Decimal(f"-{'9' * 20}.{'9' * 18}")),
        ("decimal(2,2)", "0.00", Decimal(0)),
        ("decimal(2,2)", "0", Decimal(0)),
        ("decimal(4,2)", "1.50000", Decimal("1.5")),
        ("decimal(4,2)", "0.00000", Decimal(0)),
        ("decimal(4,0)", "1200", Decimal(1200)),
        ("string", "", ""),
        ("binary", "\\x00ff5c", b"\0\xff\\"),
        ("date", "2026-02-28", date(2026, 2, 28)),
        ("timestamp", "2026-11-26 01:02:03.5+00", datetime(2026, 11, 26, 1, 2, 3, 500_000, tzinfo=UTC)),
        ("timestamp_ntz", "2026-11-26 01:02:03.000001", datetime(2026, 11, 26, 1, 2, 3, 1)),
    ],
)  # fmt: skip
def test_a_value_is_read_as_it_is(spark: str, text: str, value: Any) -> None:
    assert reader_of(spark)(text) == value


@pytest.mark.parametrize(
    ("spark", "text"),
    [
        ("decimal(4,2)", "1.001"),
        ("decimal(4,2)", "100.00"),
        ("decimal(4,2)", "NaN"),
        ("date", "infinity"),
        ("date", "0044-03-15 BC"),
        ("timestamp", "infinity"),
        ("timestamp", "10000-01-01 00:00:00+00"),
        ("timestamp", "2026-11-26 01:02:03+02"),
    ],
)
def test_a_value_that_the_type_lacks_is_refused(spark: str, text: str) -> None:
    with pytest.raises((ValueError, ArithmeticError)):
        reader_of(spark)(text)


@given(st.decimals(-999_999, 999_999, places=3))
def test_a_decimal_is_itself_or_refused(number: Decimal) -> None:
    whole = number.quantize(Decimal("0.001"))
    try:
        assert reader_of("decimal(8,3)")(str(whole)) == whole
    except ValueError:
        assert abs(whole) >= 10**5


def test_a_type_takes_what_it_holds_and_a_string_takes_all() -> None:
    assert takes("long", 23)
    assert not takes("integer", 20)
    assert not takes("timestamp", 1114)
    assert takes("string", 3802)
    with pytest.raises(ValueError, match="string takes every value"):
        reader_of("array")
