"""Changes become rows: none is left out of a range, none comes from outside, and none is guessed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_microbatch.runtime.pgoutput import (
    UNCHANGED,
    Begin,
    Change,
    Column,
    Commit,
    Delete,
    Insert,
    Message,
    Relation,
    Truncate,
    Update,
)
from airflow_provider_microbatch.runtime.slot_rows import ChangedRows, SlotError
from tests.runtime.test_pgoutput import encoded

OIDS = {"id": 20, "note": 25, "more": 25}
AT = datetime(2026, 11, 26, tzinfo=UTC)


def form(*columns: str, id: int = 7, **types: int) -> Relation:
    found = tuple(Column(name=name, type={**OIDS, **types}[name]) for name in columns or ("id", "note"))
    return Relation(id=id, schema="public", name="orders", columns=found)


def transaction(lsn: int, *changes: Change | Relation) -> list[Message]:
    return [Begin(lsn=lsn, committed=AT, transaction=3), *changes, Commit(end=lsn + 5)]


def insert(id: str, note: str | None = None, relation: int = 7) -> Insert:
    return Insert(relation=relation, new=(id, note))


def changed(messages: Sequence[Message], **options: Any) -> tuple[list[tuple[Any, ...]], int]:
    """The rows, and how many changes they are of."""
    given = {
        "name": "orders",
        "table": "orders",
        "oid": 7,
        "columns": [["id", "long"], ["note", "string"]],
        "key": ["id"],
        "on_truncate": "fail",
        "on_schema_change": "fail",
        "start": None,
        "end": 1000,
        **options,
    }
    found = ChangedRows(given)
    return list(found.of(map(encoded, messages))), found.changes


def rows(messages: Sequence[Message], **options: Any) -> list[tuple[Any, ...]]:
    return changed(messages, **options)[0]


def test_each_change_is_a_row_with_its_place_in_the_order() -> None:
    found = rows(
        [
            *transaction(10, form(), insert("1", "a"), insert("2"), Update(relation=7, old=None, new=("1", "b"))),
            *transaction(20, Delete(relation=7, old=("1", None))),
        ]
    )
    assert found == [
        (1, "a", "insert", 10, 0, AT),
        (2, None, "insert", 10, 1, AT),
        (1, "b", "update", 10, 2, AT),
        (1, None, "delete", 20, 0, AT),
    ]


@given(st.lists(st.integers(0, 3), max_size=8), st.integers(0, 90), st.integers(0, 90))
def test_ranges_that_follow_each_other_have_each_change_once(sizes: list[int], one: int, other: int) -> None:
    stream: list[Message] = [*transaction(0, form())]
    for at, size in enumerate(sizes, 1):
        stream += transaction(10 * at, *(insert(str(100 * at + number)) for number in range(size)))
    first, second = sorted((one, other))
    parts = [rows(stream, start=start, end=end) for start, end in ((None, first), (first, second), (second, 1000))]
    assert [row for part in parts for row in part] == rows(stream)
    assert len(rows(stream)) == sum(sizes)


def test_a_row_that_moves_to_another_key_is_deleted_there_and_inserted_here() -> None:
    moved = Update(relation=7, old=("1", "a"), new=("2", UNCHANGED))
    assert changed(transaction(10, form(), moved)) == (
        [(1, "a", "delete", 10, 0, AT), (2, "a", "insert", 10, 1, AT)],
        1,
    )
    kept = Update(relation=7, old=("1", "a"), new=("1", "b"))
    assert [row[2] for row in rows(transaction(10, form(), kept))] == ["update"]


def test_forms_of_tables_that_are_emptied_or_changed_beside_it_are_none_of_its_partitions() -> None:
    other = Relation(id=8, schema="public", name="other", columns=(Column(name="id", type=20, is_told=False),))
    update = Update(relation=7, old=None, new=("1", "b"))
    for between in (
        (form(), other, Truncate(relations=(7, 8))),
        (form(), insert("1"), other, Insert(relation=8, new=("1",))),
        (other, Insert(relation=8, new=("1",)), form(), insert("1")),
    ):
        assert rows(transaction(10, *between, update), on_truncate="row")[-1][:3] == (1, "b", "update")
    with pytest.raises(SlotError, match="had not the whole key"):
        rows(transaction(10, form(), other, insert("1"), update))


def test_what_an_update_left_as_it_was_is_taken_from_the_old_row_and_never_guessed() -> None:
    update = Update(relation=7, old=("1", "large"), new=("1", UNCHANGED))
    assert rows(transaction(10, form(), update))[0][:2] == (1, "large")
    for old in (None, ("1", None)):
        with pytest.raises(SlotError, match=r"note .*REPLICA IDENTITY FULL.*pg_replication_slot_advance"):
            rows(transaction(10, form(), Update(relation=7, old=old, new=("1", UNCHANGED))))


def test_a_table_that_is_emptied_stops_or_is_a_row_of_its_own() -> None:
    messages = transaction(10, Truncate(relations=(5, 7)))
    with pytest.raises(SlotError, match="on_truncate='row'"):
        rows(messages)
    assert rows(messages, on_truncate="row") == [(None, None, "truncate", 10, 0, AT)]
    assert rows(transaction(10, Truncate(relations=(5,)))) == []


def test_changes_of_other_tables_are_none_of_ours_even_by_the_same_name() -> None:
    found = changed(transaction(10, form(id=8), insert("1", relation=8), form(), insert("2")))
    assert found == ([(2, None, "insert", 10, 0, AT)], 1)


def test_a_form_counts_from_when_it_is_told_and_is_heeded_in_transactions_that_are_passed_over() -> None:
    swapped = form("note", "id")
    messages = [
        *transaction(10, form(), insert("1", "a")),
        *transaction(20, swapped, Insert(relation=7, new=("b", "2"))),
        *transaction(30, Insert(relation=7, new=("c", "3"))),
    ]
    assert [row[:2] for row in rows(messages)] == [(1, "a"), (2, "b"), (3, "c")]
    assert [row[:2] for row in rows(messages, start=25)] == [(3, "c")]


def test_a_column_of_before_is_null_and_one_that_came_stops_or_is_left_out() -> None:
    columns = [["id", "long"], ["note", "string"], ["more", "string"]]
    assert rows(transaction(10, form(), insert("1", "a")), columns=columns)[0][:3] == (1, "a", None)
    came = transaction(10, form("id", "note", "more"), Insert(relation=7, new=("1", "a", "x")))
    with pytest.raises(SlotError, match=r"more.*on_schema_change='ignore'"):
        rows(came)
    assert rows(came, on_schema_change="ignore")[0][:2] == (1, "a")


def test_a_type_that_does_not_fit_and_a_key_that_is_not_there_are_named() -> None:
    with pytest.raises(SlotError, match="note timestamp"):
        rows(transaction(10, form(), insert("1", "a")), columns=[["id", "long"], ["note", "timestamp"]])
    with pytest.raises(SlotError, match="no column id"):
        rows(transaction(10, form("note"), Insert(relation=7, new=("a",))))
    with pytest.raises(SlotError, match=r"value in note .*decimal\(3,2\)"):
        rows(transaction(10, form(note=1700), insert("1", "9999")), columns=[["id", "long"], ["note", "decimal(3,2)"]])
