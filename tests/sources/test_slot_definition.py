"""What a user writes about a slot is refused where it is wrong, and says which field that is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.slot import SlotSource
from airflow_provider_microbatch.sources.slot.offset import Place

GIVEN = {"slot": "orders", "table": "orders", "conn_id": "db", "publication": "p", "schema": "id long, note string"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("slot", "Orders"),
        ("slot", "orders'; --"),
        ("table", "a.b.c"),
        ("conn_id", ""),
        ("publication", " "),
        ("schema", "id nonsense"),
        ("schema", "id long, notes array<string>"),
        ("schema", "id long, id long"),
        ("schema", "id long, _op string"),
        ("key", []),
        ("key", ["other"]),
        ("key", "id"),
        ("max_changes", 0),
        ("on_truncate", "ignore"),
        ("on_schema_change", "row"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(DefinitionError, match=rf"SlotSource\(.*{field}"):
        SlotSource(**{**GIVEN, field: value})


def test_it_travels_as_json_and_tells_what_decides_about_rows() -> None:
    source = SlotSource(**GIVEN, key=("id",))
    assert Definition.from_dict(json.loads(json.dumps(source.to_dict())), any_server=True) == source
    assert source.reads_as()["schema"] == "id long, note string"


def test_two_sources_of_a_pipeline_have_no_slot_in_common() -> None:
    sources = {"a": SlotSource(**GIVEN), "b": SlotSource(**{**GIVEN, "table": "other"})}
    with pytest.raises(DefinitionError, match="gives up what it has read"):
        Pipeline("orders", checkpoint="/c", sources=sources, sink=FileSink("/t"))


@pytest.mark.parametrize(
    "offset",
    ["", "[]", "{}", '{"lsn": 3}', '{"lsn": "0/0/0"}', '{"lsn": "-1/0"}', '{"lsn": "0/0", "changes": 1}'],
)
def test_what_is_no_place_is_refused(offset: str) -> None:
    with pytest.raises(ValueError, match="no place in a slot"):
        Place.of(offset)


def test_a_place_is_read_as_it_was_written() -> None:
    place = Place(lsn=(5 << 32) + 0xABC, changes=3, table=16385)
    assert Place.of(place.text()) == place
    assert Place.of('{"lsn": "5/ABC"}') == Place(lsn=place.lsn)
