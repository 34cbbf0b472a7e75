"""Columns in Arrow's types, whoever has written their file."""

from __future__ import annotations

from typing import Any


def plain(schema: Any) -> Any:
    """The schema without types of views and of large values, as delta-rs and pyiceberg use them: Arrow compares and
    filters no views, and takes no large text for a text."""
    import pyarrow as pa

    return pa.schema([field.with_type(_plain_type(field.type)) for field in schema])


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


def _plain_type(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_plain_type(kind.key_type)), kind.item_field.with_type(_plain_type(kind.item_type))
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    return kind
