"""The columns of a stage, recorded by the runtime in Spark's JSON form, compared with those of the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.file.arguments import RESERVED_COLUMNS
from airflow_provider_microbatch.sinks.iceberg.partitions import IDENTITY, Partition
from airflow_provider_microbatch.sinks.placed.arrow_types import plain

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

_PRIMITIVES = {
    "string": "string", "long": "long", "integer": "int", "short": "int", "byte": "int", "float": "float",
    "double": "double", "boolean": "boolean", "binary": "binary", "date": "date", "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}  # fmt: skip
_GROUPS = {"string", "long", "int", "boolean", "date"}
"""Types (besides decimals) whose values can split files by partition: each value has only one text, whatever the
session's time zone."""

OURS: Mapping[str, str] = dict(zip(RESERVED_COLUMNS, ("string", "long"), strict=True))
"""The columns that say which batch a row belongs to."""


@dataclass(frozen=True)
class Columns:
    """The columns of a stage.

    :param types: Iceberg types by name; the ids in them mean nothing.
    """

    types: Mapping[str, IcebergType]

    @classmethod
    def of_stage(cls, told: Mapping[str, Any] | None, *, partitions: Sequence[Partition], where: str) -> Columns:
        """The columns that the runtime has recorded; only this package's own columns if no source had a frame.

        :raises SinkError: for a type that the table cannot have, or a partition column whose values have no one text.
        """
        fields = [{"name": k, "type": v} for k, v in OURS.items()] if told is None else told["schema"]["fields"]
        ids = count(1)
        types = {}
        for one in fields:
            found = _iceberg(one["type"], ids)
            if found is None:
                raise SinkError(
                    f"column {one['name']!r} has the type {one['type']}, which no file of {where} can have. Cast it "
                    "in the transform."
                )
            types[one["name"]] = found
        for partition in partitions:
            kind = types.get(partition.column)
            if kind is None:
                has = f"the result has no column {partition.column!r} (but {', '.join(types)})"
                raise SinkError(f"{where} is partitioned by {partition}, and {has}. Give the source a schema.")
            times = {"date", "timestamptz", "timestamp"} - ({"date"} if partition.transform == "hour" else set())
            fits = str(kind) in _GROUPS or str(kind).startswith("decimal")
            if not (fits if partition.transform == IDENTITY else str(kind) in times):
                raise SinkError(f"{where} cannot be partitioned by {partition}, which is of the type {kind}.")
        return cls(types)

    @property
    def schema(self) -> Schema:
        """The schema of a table that is made of these columns."""
        from pyiceberg.schema import Schema
        from pyiceberg.types import NestedField

        # The catalog assigns its own ids; the ids here only have to differ.
        ids = count(1_000_000)
        return Schema(
            *(
                NestedField(field_id=next(ids), name=name, field_type=kind, required=False)
                for name, kind in self.types.items()
            )
        )

    @classmethod
    def of_record(cls, fields: Sequence[Mapping[str, Any]]) -> Columns:
        """The columns as :attr:`record` has written them down."""
        from pyiceberg.types import IcebergType

        return cls({one["name"]: IcebergType.model_validate(one["type"]) for one in fields})

    @property
    def record(self) -> list[Mapping[str, Any]]:
        """The columns, to be written down."""
        return [{"name": name, "type": kind.model_dump(mode="json")} for name, kind in self.types.items()]

    def missing(self, table: Schema, *, policy: str, where: str) -> dict[str, IcebergType]:
        """Columns that must be added to the table before the stage can be published.

        :raises SinkError: if the stage does not fit the table, and may not change it.
        """
        of_table = {one.name: one.field_type for one in table.fields}
        spelled = {name.casefold(): name for name in of_table}
        ways = "Nothing was published. Change the transform to return the table's columns"
        for name, kind in self.types.items():
            if name not in of_table:
                if name.casefold() in spelled:
                    other = spelled[name.casefold()]
                    raise SinkError(f"column {name!r} is called {other!r} in {where}. {ways}.")
                continue
            own, theirs = type_alone(kind), type_alone(of_table[name])
            if own != theirs:
                raise SinkError(
                    f"column {name!r} is {own}, and {theirs} in {where}: files of both cannot be read as one table. "
                    f"{ways} (cast it), or publish to another table."
                )
        new = {name: kind for name, kind in self.types.items() if name not in of_table}
        absent = [name for name in of_table if name not in self.types]
        names = set(OURS)
        if policy == "add_columns" or names == set(of_table) or (names == set(self.types) and not new):
            # A batch without a source's frame has no columns but ours, nor has a table of such batches alone.
            return new
        if new or absent:
            parts = [f"does not have {', '.join(map(repr, new))}"] if new else []
            parts += [f"has {', '.join(map(repr, absent))} too"] if absent else []
            raise SinkError(
                f"the result's columns are not those of {where}, which {' and '.join(parts)}. {ways}; or say "
                "IcebergSink(…, schema_policy='add_columns'): what is missing on either side is null then."
            )
        return {}


def arrow_schema(schema: Schema) -> Any:
    """The columns in Arrow's types."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return plain(schema_to_pyarrow(schema, include_field_ids=False))


def is_of_spark(kind: IcebergType) -> bool:
    """Whether files of Spark's have values of that type, which is none of several."""
    return str(kind) in _PRIMITIVES.values() or str(kind).startswith("decimal(")


def type_alone(kind: IcebergType) -> str:
    """The type alone, as text, without ids and without required parts."""
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{one.name}: {type_alone(one.field_type)}' for one in kind.fields)}>"
    if isinstance(kind, ListType):
        return f"list<{type_alone(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{type_alone(kind.key_type)}, {type_alone(kind.value_type)}>"
    return str(kind)


def _iceberg(kind: Any, ids: Iterator[int]) -> IcebergType | None:
    """The Iceberg type for a type of Spark; None if there is none."""
    from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

    if not isinstance(kind, Mapping):
        text = _PRIMITIVES.get(kind, kind if str(kind).startswith("decimal(") else None)
        return None if text is None else IcebergType.model_validate(text)
    parts: list[IcebergType | None]
    if kind["type"] == "struct":
        fields = []
        for one in kind["fields"]:
            found = _iceberg(one["type"], ids)
            if found is None:
                return None
            fields.append(NestedField(field_id=next(ids), name=one["name"], field_type=found, required=False))
        return StructType(*fields)
    if kind["type"] == "array":
        element = _iceberg(kind["elementType"], ids)
        return element and ListType(element_id=next(ids), element_type=element, element_required=False)
    if kind["type"] == "map":
        parts = [_iceberg(kind[part], ids) for part in ("keyType", "valueType")]
        if parts[0] is None or parts[1] is None:
            return None
        return MapType(
            key_id=next(ids), key_type=parts[0], value_id=next(ids), value_type=parts[1], value_required=False
        )
    return None
