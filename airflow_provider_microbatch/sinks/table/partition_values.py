"""Values of partition columns, as folders and the metastore spell them: ``day=2026-01-31/country=__HIVE_…``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from airflow_provider_microbatch.sinks.table.statements import literal, quoted

Values = tuple[tuple[str, str | None], ...]
"""Partition columns, each with its value as text; None for null."""

KINDS = frozenset({"string", "tinyint", "smallint", "int", "bigint", "date", "boolean"})
"""Types whose values have one spelling, so that a folder and its partition are known as the same. That of a time is
another one in each time zone."""

_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile("%([0-9A-Fa-f]{2})")


def values_of(path: str, columns: Sequence[str]) -> Values:
    """The values that a path spells.

    :param path: one name a column, ``column=value``.
    :param columns: the columns, by the names that the table has for them: a path may have other capitals.
    """
    spelled = (name.partition("=")[2] for name in path.split("/"))
    return tuple(
        (column, None if value == _NULL else _ESCAPED.sub(lambda sign: chr(int(sign[1], 16)), value))
        for column, value in zip(columns, spelled, strict=True)
    )


def spelled(values: Values) -> str:
    """The values in the PARTITION clause of a statement."""
    return "".join(f", {quoted(column)} = {'NULL' if value is None else literal(value)}" for column, value in values)
