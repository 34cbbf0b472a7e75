"""The columns of a stage, compared with those of the table, in the JSON form that Delta has taken from Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.file.arguments import RESERVED_COLUMNS
from airflow_provider_microbatch.sinks.placed.arrow_types import plain

_PRIMITIVES = {
    "string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary", "date", "timestamp",
    "timestamp_ntz",
}  # fmt: skip
_PARTITIONS = {"string", "long", "integer", "short", "byte", "boolean", "date"}
"""Types (besides decimals) whose values have only one text, whatever the session's time zone."""

OURS: tuple[Mapping[str, Any], ...] = tuple(
    {"name": name, "type": kind, "nullable": True, "metadata": {}}
    for name, kind in zip(RESERVED_COLUMNS, ("string", "long"), strict=True)
)
"""The columns that say which batch a row belongs to."""


@dataclass(frozen=True)
class Columns:
    """The columns of a stage.

    :param fields: the columns, each with its name, type, ``nullable`` and metadata.
    """

    fields: Sequence[Mapping[str, Any]]

    @classmethod
    def of_stage(cls, told: Mapping[str, Any] | None, *, partition_by: Sequence[str], where: str) -> Columns:
        """The columns that the runtime has recorded; only this package's own columns if no source had a frame.

        :raises SinkError: for a type that the table cannot have.
        """
        fields = OURS if told is None else [_as_nullable(one) for one in told["schema"]["fields"]]
        kinds = {one["name"]: one["type"] for one in fields}
        for name, kind in kinds.items():
            for odd in _odd_types(kind):
                raise SinkError(
                    f"column {name!r} has the type {odd}, which no file of {where} can have. Cast it in the transform."
                )
        for name in partition_by:
            kind = kinds.get(name)
            if kind is None:
                has = f"the result has no column {name!r} (but {', '.join(kinds)})"
                raise SinkError(f"{where} is partitioned by {name!r}, and {has}. Give the source a schema.")
            if kind not in _PARTITIONS and not str(kind).startswith("decimal"):
                raise SinkError(
                    f"{where} cannot be partitioned by {name!r} of the type {kind}: its text depends on who reads it. "
                    "Partition by a date, a whole number or a text that the transform makes of it."
                )
        return cls(fields)

    @property
    def schema(self) -> Mapping[str, Any]:
        """The schema of a table that is made of these columns."""
        return {"type": "struct", "fields": list(self.fields)}

    def missing(self, table: Mapping[str, Any], *, policy: str, where: str) -> list[Mapping[str, Any]]:
        """Columns that must be added to the table before the stage can be published.

        :param table: the table's schema.
        :raises SinkError: if the stage does not fit the table, and may not change it.
        """
        of_table = {one["name"]: one for one in table["fields"]}
        of_stage = {one["name"]: one for one in self.fields}
        ways = "Nothing was published. Change the transform to return the table's columns"
        spelled = {name.casefold(): name for name in of_table}
        for name, one in of_stage.items():
            if name not in of_table:
                if name.casefold() in spelled:
                    other = spelled[name.casefold()]
                    raise SinkError(f"column {name!r} is called {other!r} in {where}. {ways}.")
                continue
            theirs, own = _type_alone(of_table[name]["type"]), _type_alone(one["type"])
            if theirs != own:
                raise SinkError(
                    f"column {name!r} is {_told(own)}, and {_told(theirs)} in {where}: files of both cannot be read as "
                    f"one table. {ways} (cast it), or publish to another table."
                )
        new = [one for name, one in of_stage.items() if name not in of_table]
        absent = [name for name in of_table if name not in of_stage]
        names = {one["name"] for one in OURS}
        if policy == "add_columns" or names == set(of_table) or (names == set(of_stage) and not new):
            # A batch without a source's frame has no columns but ours, nor has a table of such batches alone.
            return new
        if new or absent:
            parts = [f"does not have {', '.join(map(repr, (one['name'] for one in new)))}"] if new else []
            parts += [f"has {', '.join(map(repr, absent))} too"] if absent else []
            raise SinkError(
                f"the result's columns are not those of {where}, which {' and '.join(parts)}. {ways}; or say "
                "DeltaSink(…, schema_policy='add_columns'): what is missing on either side is null then."
            )
        return []


def arrow_schema(schema: Mapping[str, Any]) -> Any:
    """The schema of a table's columns, in Arrow's types."""
    import pyarrow as pa
    from deltalake import Schema

    return plain(pa.schema(Schema.from_json(json.dumps(schema)).to_arrow()))


def _as_nullable(field: Mapping[str, Any]) -> Mapping[str, Any]:
    """The column with nulls allowed, as later batches may have nulls. Of the frame's metadata only the comment is kept:
    the table does not promise the rest (such as where a column came from)."""
    comment = {"comment": field["metadata"]["comment"]} if "comment" in field.get("metadata", {}) else {}
    return {"name": field["name"], "type": nullable_type(field["type"]), "nullable": True, "metadata": comment}


def nullable_type(kind: Any) -> Any:
    """The type with nulls allowed everywhere in it."""
    if not isinstance(kind, Mapping):
        return kind
    if kind["type"] == "struct":
        return {"type": "struct", "fields": [_as_nullable(one) for one in kind["fields"]]}
    if kind["type"] == "array":
        return {"type": "array", "elementType": nullable_type(kind["elementType"]), "containsNull": True}
    if kind["type"] == "map":
        keys, values = nullable_type(kind["keyType"]), nullable_type(kind["valueType"])
        return {"type": "map", "keyType": keys, "valueType": values, "valueContainsNull": True}
    return kind


def _type_alone(kind: Any) -> Any:
    """The type alone, without nullability and metadata of its parts."""
    if isinstance(kind, Mapping) and kind["type"] == "struct":
        return {"struct": [(one["name"], _type_alone(one["type"])) for one in kind["fields"]]}
    if isinstance(kind, Mapping) and kind["type"] == "array":
        return {"array": _type_alone(kind["elementType"])}
    if isinstance(kind, Mapping) and kind["type"] == "map":
        return {"map": (_type_alone(kind["keyType"]), _type_alone(kind["valueType"]))}
    return kind


def _odd_types(kind: Any) -> Iterator[str]:
    if not isinstance(kind, Mapping):
        if kind not in _PRIMITIVES and not str(kind).startswith("decimal"):
            yield str(kind)
    elif kind["type"] == "struct":
        for one in kind["fields"]:
            yield from _odd_types(one["type"])
    elif kind["type"] in ("array", "map"):
        for part in ("elementType", "keyType", "valueType"):
            if part in kind:
                yield from _odd_types(kind[part])
    else:
        yield str(kind["type"])


def _told(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)
