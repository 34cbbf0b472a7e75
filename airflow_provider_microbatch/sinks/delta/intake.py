"""What a Delta table takes of a row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_provider_microbatch.runtime.intake import VALUE, Intake, Limit, TableColumn
from airflow_provider_microbatch.sinks.delta.columns import OURS
from airflow_provider_microbatch.sinks.delta.log import Snapshot

_CONSTRAINT = "delta.constraints."
_NUMBERS = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
"""Types of Delta's that Spark's SQL calls otherwise."""
_TEXT = "__CHAR_VARCHAR_TYPE_STRING"
"""Spark's note of how long a text of the column may be; to Delta itself it is a string."""
_LENGTH = re.compile(r"(?:var)?char\((\d+)\)")
_OURS = {one["name"] for one in OURS}


def intake_of(snapshot: Snapshot) -> Intake:
    """What the table takes at that version. Parts of a column (elements, fields) are not looked into."""
    columns = tuple(_column(one) for one in snapshot.schema["fields"] if one["name"] not in _OURS)
    return Intake(columns=columns, constraints=constraints_of(snapshot))


def rules_of(snapshot: Snapshot) -> tuple[str, ...]:
    """The table's rules for rows at that version, as :attr:`Intake.rules` has them; its readers rely on them, and no
    file is held against them when it is committed."""
    return intake_of(snapshot).rules


def constraints_of(snapshot: Snapshot) -> dict[str, str]:
    """The conditions by their names."""
    return {
        name.removeprefix(_CONSTRAINT): condition
        for name, condition in snapshot.properties.items()
        if name.startswith(_CONSTRAINT)
    }


def _column(field: Mapping[str, Any]) -> TableColumn:
    kind = field["type"] if isinstance(field["type"], str) else None
    length = _LENGTH.fullmatch(str(field["metadata"].get(_TEXT)))
    return TableColumn(
        name=field["name"],
        told=length[0] if length is not None else _told(field["type"]),
        type=None if kind is None else _NUMBERS.get(kind, kind),
        is_needed=not field["nullable"],
        limits=() if length is None else (_no_longer_than(length[1], told=length[0]),),
    )


def _told(type: Any) -> str:
    return _NUMBERS.get(type, type) if isinstance(type, str) else str(type["type"])


def _no_longer_than(characters: str, *, told: str) -> Limit:
    return Limit(condition=f"char_length({VALUE}) <= {characters}", problem=f"longer than {told}", kinds=("string",))
