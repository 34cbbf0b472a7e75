"""Converts rows of plain Python to the columns of a schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_FRACTIONAL, _WHOLE = ("double", "float"), ("byte", "short", "integer", "long")
"""Names of types of columns."""


def in_columns(rows: Iterable[Any], schema: StructType, *, name: str) -> Iterator[tuple[Any, ...]]:
    """Each row as a tuple in the schema's order. An integer in a column of floating point numbers becomes a float: JSON
    does not distinguish ``1`` from ``1.0`` other than by spelling. A fraction in a column of whole numbers is refused:
    Spark Connect would cut it off.

    :param rows: mappings by column, or sequences in the schema's order.
    :param name: name of the source, for errors.
    :raises ValueError: if a value is not a row of the schema.
    """
    columns, kinds = schema.fieldNames(), [field.dataType.typeName() for field in schema.fields]
    numbers = [(at, kind in _FRACTIONAL) for at, kind in enumerate(kinds) if kind in _FRACTIONAL or kind in _WHOLE]
    for row in rows:
        values = list(_values(row, columns, name))
        for at, is_fractional in numbers:
            value = values[at]
            if is_fractional and type(value) is int:
                values[at] = float(value)
            elif not is_fractional and isinstance(value, float) and not value.is_integer():
                raise ValueError(
                    f"source {name!r}: its read gave {value!r} in column {columns[at]!r}, which is of type "
                    f"{kinds[at]}. Give whole numbers, or have the schema say double."
                )
        yield tuple(values)


def _values(row: Any, columns: Sequence[str], name: str) -> Sequence[Any]:
    if isinstance(row, Mapping):
        return [row.get(column) for column in columns]
    if not isinstance(row, Sequence) or isinstance(row, (str, bytes)):
        raise ValueError(
            f"source {name!r}: its read gave a {type(row).__name__} as a row, and not a mapping by column or a "
            "sequence in the schema's order."
        )
    if len(row) != len(columns):
        raise ValueError(
            f"source {name!r}: its read gave a row with {len(row)} values, and the schema has {len(columns)} columns "
            f"({', '.join(columns)})."
        )
    return row
