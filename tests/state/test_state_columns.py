"""Whether a transform's state is of the types of what an attempt at the same first batch has left, by Spark's bytes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.operator_schemas import take
from airflow_provider_microbatch.runtime.state_columns import are_kept_alike

VALUE = {
    "type": "struct",
    "fields": [{"name": "__dummy__", "type": "void", "nullable": True, "metadata": {}}],
}


def text(of: str) -> bytes:
    return struct.pack(">H", len(of.encode())) + of.encode()


def stored(*fields: dict[str, Any], version: str = "v2", parts: int = 1) -> bytes:
    """A store's file of columns, as Spark writes it."""
    found = text(version)
    for kind in ({"type": "struct", "fields": fields}, VALUE):
        told = json.dumps(kind, separators=(",", ":"))
        size = -(-len(told) // parts)
        found += struct.pack(">i", parts) + b"".join(text(told[at : at + size]) for at in range(0, len(told), size))
    return found


def field(name: str, kind: Any = "long", *, nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def delayed(ms: int, name: str = "ts") -> dict[str, Any]:
    return {**field(name, "timestamp"), "metadata": {"spark.watermarkDelayMs": ms}}


def collated(name: str, collation: str) -> dict[str, Any]:
    return field(name, "string", __COLLATIONS={name: collation})


def array(*, of: Any = "long", null: bool = True) -> dict[str, Any]:
    return {"type": "array", "elementType": of, "containsNull": null}


def mapped(*, to: Any = "long", null: bool = True) -> dict[str, Any]:
    return {"type": "map", "keyType": "string", "valueType": to, "valueContainsNull": null}


def nested(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


ALIKE = {
    "another delay": (stored(delayed(600_000)), stored(delayed(3_600_000))),
    "none any more": (stored(field("ts", "timestamp")), stored(delayed(3_600_000))),
    "another name": (stored(field("customer")), stored(field("id"))),
    "another name within": (stored(field("a", nested(field("b")))), stored(field("a", nested(field("c"))))),
    "null no more": (stored(field("id", nullable=False)), stored(field("id"))),
    "a name of a collation's column": (
        stored(collated("a", "spark.UTF8_LCASE")),
        stored(collated("b", "spark.UTF8_LCASE")),
    ),
    "long columns": (stored(field("a" * 70_000), parts=3), stored(field("b"))),
}
DIFFERENT = {
    "another type": (stored(field("id", "string")), stored(field("id"))),
    "one more": (stored(field("id"), field("n")), stored(field("id"))),
    "null now": (stored(field("id")), stored(field("id", nullable=False))),
    "elements": (stored(field("a", array(of="string"))), stored(field("a", array()))),
    "elements that are null now": (stored(field("a", array())), stored(field("a", array(null=False)))),
    "values": (stored(field("a", mapped(to="string"))), stored(field("a", mapped()))),
    "values that are null now": (stored(field("a", mapped())), stored(field("a", mapped(null=False)))),
    "a column within": (stored(field("a", nested(field("b", "string")))), stored(field("a", nested(field("b"))))),
    "another kind": (stored(field("a", array())), stored(field("a", mapped()))),
    "another collation": (stored(collated("a", "spark.UTF8_LCASE")), stored(field("a", "string"))),
    "a form of another version": (stored(delayed(1), version="v3"), stored(delayed(2), version="v3")),
    "more behind it": (stored(delayed(1)) + b"\0", stored(delayed(2)) + b"\0"),
    "no such file": (b'v1\n{"operatorInfo":{}}', b"v1\n{}"),
    "a file that was cut off": (stored(delayed(1))[:-9], stored(delayed(2))[:-9]),
}


@pytest.mark.parametrize(("mine", "there"), ALIKE.values(), ids=ALIKE)
def test_columns_of_the_same_types_are_kept_alike(mine: bytes, there: bytes) -> None:
    assert are_kept_alike(mine, there)


@pytest.mark.parametrize(("mine", "there"), DIFFERENT.values(), ids=DIFFERENT)
def test_columns_of_other_types_are_not(mine: bytes, there: bytes) -> None:
    assert not are_kept_alike(mine, there)
    assert are_kept_alike(mine, mine)


def left(folder: Path, columns: bytes) -> Path:
    """Where an attempt at the first batch has left the state of one operator."""
    schema = folder / "0" / "0" / "_metadata" / "schema"
    schema.parent.mkdir(parents=True)
    schema.write_bytes(columns)
    return folder


def test_a_first_batch_is_made_again_with_another_delay_of_the_watermark(tmp_path: Path) -> None:
    shared = left(tmp_path / "shared", stored(delayed(600_000)))
    assert take({}, shared=shared, own=left(tmp_path / "own", stored(delayed(3_600_000, "at"))), batch_id=-1) == {}
    with pytest.raises(BatchFailure, match=r"0/0/_metadata/schema differs.*`rewind --to -1 --drop-output`"):
        take({}, shared=shared, own=left(tmp_path / "other", stored(field("ts", "string"))), batch_id=-1)
