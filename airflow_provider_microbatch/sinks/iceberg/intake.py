"""What an Iceberg table takes of a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_microbatch.runtime.intake import Intake, TableColumn
from airflow_provider_microbatch.sinks.iceberg.columns import OURS

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

_SPARK = {
    "string": "string", "long": "bigint", "int": "int", "float": "float", "double": "double", "boolean": "boolean",
    "binary": "binary", "date": "date", "timestamptz": "timestamp", "timestamp": "timestamp_ntz",
}  # fmt: skip


def intake_of(schema: Schema) -> Intake:
    """What the table takes. Parts of a column (elements, fields) are not looked into."""
    columns = []
    for one in schema.fields:
        if one.name not in OURS:
            told = str(one.field_type) if one.field_type.is_primitive else type(one.field_type).__name__
            kind = told.replace(", ", ",") if told.startswith("decimal(") else _SPARK.get(told)
            columns.append(TableColumn(name=one.name, told=told, type=kind, is_needed=one.required))
    return Intake(columns=tuple(columns))
