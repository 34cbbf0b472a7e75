"""Columns in Arrow's types, whoever has written their file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def plain(schema: Any) -> Any:
    """The schema without types of views and of large values, as delta-rs and pyiceberg use them: Arrow compares and
    filters no views, and takes no large text for a text."""
    import pyarrow as pa

    return pa.schema([field.with_type(_made_of(field.type, _plain_type)) for field in schema])


def fitted(table: Any, schema: Any) -> Any:
    """The rows with the columns of the schema; a column that they do not have is null.

    :param table: an Arrow table.
    """
    import pyarrow as pa

    present = plain(table.schema)
    table = table.cast(present)
    return pa.table(
        [
            table.column(field.name).cast(field.type)
            if field.name in present.names
            else pa.nulls(table.num_rows, field.type)
            for field in schema
        ],
        schema=schema,
    )


def in_numbers(table: Any) -> Any:
    """The rows with times and days as numbers: a column may have a year that no value of Python has, such as 10000."""
    import pyarrow as pa

    if not table.num_columns:  # a cast would lose the number of its rows
        return table
    return table.cast(pa.schema([field.with_type(_made_of(field.type, _number_type)) for field in table.schema]))


def values_of(table: Any) -> list[Mapping[str, Any]]:
    """The rows as values of Python; of one with a time or a day that Python has not, all of these as numbers."""
    try:
        found: list[Mapping[str, Any]] = table.to_pylist()
    except OverflowError:
        if table.num_rows == 1:
            found = in_numbers(table).to_pylist()
        else:  # by the row alone: what is told of one must not depend on others
            found = [row for at in range(table.num_rows) for row in values_of(table.slice(at, 1))]
    return found


def _plain_type(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    return kind


def _number_type(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_timestamp(kind) or pa.types.is_date64(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date32(kind) else kind


def _made_of(kind: Any, leaf: Callable[[Any], Any]) -> Any:
    """The type with other types of single values, also of those within it."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_made_of(field.type, leaf)) for field in kind])
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_made_of(key.type, leaf)), item.with_type(_made_of(item.type, leaf)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_made_of(kind.value_type, leaf)))
    return leaf(kind)
