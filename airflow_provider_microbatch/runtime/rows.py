"""Converts rows of plain Python to the columns of a schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def in_columns(rows: Iterable[Any], schema: StructType, *, name: str) -> Iterator[tuple[Any, ...]]:
    """Each row as a tuple in the schema's order. An integer in a column of floating point numbers becomes a float: JSON
    does not distinguish ``1`` from ``1.0`` other than by spelling.

    :param rows: mappings by column, or sequences in the schema's order.
    :param name: name of the source, for errors.
    :raises ValueError: if a value is not a row of the schema.
    """
    fractional = [field.dataType.typeName() in ("double", "float") for field in schema.fields]
    for row in rows:
        values = _values(row, schema.fieldNames(), name)
        yield tuple(
            float(value) if is_fractional and type(value) is int else value
            for value, is_fractional in zip(values, fractional, strict=True)
        )


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
