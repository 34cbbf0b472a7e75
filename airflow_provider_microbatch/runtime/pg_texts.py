"""Turns values of PostgreSQL, written as texts, into the Python values of Spark's types, exactly or not at all.

The session that writes the texts has the settings of :data:`SETTINGS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

SETTINGS = {
    "client_encoding": "UTF8",
    "datestyle": "ISO",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "intervalstyle": "iso_8601",
}
"""Settings of a session that decide how it writes values."""

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,6}))?(\+00)?")

TYPES: Mapping[str, frozenset[int]] = {
    "boolean": frozenset({16}),
    "short": frozenset({21}),
    "integer": frozenset({21, 23}),
    "long": frozenset({20, 21, 23, 26}),
    "float": frozenset({700}),
    "double": frozenset({700, 701}),
    "decimal": frozenset({20, 21, 23, 1700}),
    "binary": frozenset({17}),
    "date": frozenset({1082}),
    "timestamp": frozenset({1184}),
    "timestamp_ntz": frozenset({1114}),
}
"""Oids of the types of PostgreSQL that a type of Spark's takes. ``string`` takes all, as PostgreSQL writes them."""


def takes(spark: str, type: int) -> bool:
    """Whether a column of Spark's type takes values of PostgreSQL's type.

    :param spark: as Spark's JSON has it: ``decimal(10,2)``.
    :param type: oid.
    """
    return spark == "string" or type in TYPES.get(spark.partition("(")[0], ())


def reader_of(spark: str) -> Callable[[str], Any]:
    """The function that reads texts into a type of Spark's, and raises ValueError for a value that the type lacks.

    :raises ValueError: if no value is read into this type.
    """
    if (found := _DECIMAL.fullmatch(spark)) is not None:
        return partial(_decimal, int(found[1]), int(found[2]))
    if spark not in _READERS:
        raise ValueError(f"a column of {spark} cannot be read; string takes every value")
    return _READERS[spark]


def _boolean(text: str) -> bool:
    return {"t": True, "f": False}[text]


def _decimal(precision: int, scale: int, text: str) -> Decimal:
    # A ``numeric`` without a scale is written with the zeros it was given. (Decimal's own way to drop them rounds.)
    found = Decimal(text.rstrip("0") if "." in text else text)
    if not found.is_finite():
        raise ValueError(f"{text} is no decimal of Spark's")
    _, digits, exponent = found.as_tuple()
    assert isinstance(exponent, int), "it is finite"
    if -exponent > scale or (found and len(digits) + exponent > precision - scale):
        raise ValueError(f"{text} does not fit into decimal({precision},{scale})")
    return found


def _binary(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("\\x"))


def _timestamp(text: str) -> datetime:
    return _moment(text).replace(tzinfo=UTC)


def _moment(text: str) -> datetime:
    found = _MOMENT.fullmatch(text)
    if found is None:  # infinity, a year before Christ or beyond 9999
        raise ValueError(f"{text!r} is no moment of Spark's Python")
    return datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(microsecond=int((found[2] or "").ljust(6, "0")))


_READERS: Mapping[str, Callable[[str], Any]] = {
    "boolean": _boolean,
    "short": int,
    "integer": int,
    "long": int,
    "float": float,
    "double": float,
    "string": str,
    "binary": _binary,
    "date": date.fromisoformat,
    "timestamp": _timestamp,
    "timestamp_ntz": _moment,
}
