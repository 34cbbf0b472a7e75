"""Each message of pgoutput is decoded as it was written, and nothing else passes for one."""

from __future__ import annotations

import contextlib
import struct
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_microbatch.runtime.pgoutput import (
    UNCHANGED,
    Begin,
    Column,
    Commit,
    Delete,
    Insert,
    Message,
    Relation,
    Truncate,
    Unchanged,
    Update,
    Values,
    decode,
    kind_of,
    relation_of,
)

_OIDS = st.integers(0, 2**32 - 1)
_LSNS = st.integers(0, 2**64 - 1)
_NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=20)
_TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
_VALUES = st.lists(st.none() | st.just(UNCHANGED) | _TEXTS, max_size=6).map(tuple)
_MOMENTS = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))

MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Begin, lsn=_LSNS, committed=_MOMENTS, transaction=_OIDS),
    st.builds(Commit, end=_LSNS),
    st.builds(
        Relation,
        id=_OIDS,
        schema=_NAMES,
        name=_NAMES,
        columns=st.lists(st.builds(Column, name=_NAMES, type=_OIDS, is_told=st.booleans()), max_size=5).map(tuple),
    ),
    st.builds(Insert, relation=_OIDS, new=_VALUES),
    st.builds(Update, relation=_OIDS, old=st.none() | _VALUES, new=_VALUES),
    st.builds(Delete, relation=_OIDS, old=_VALUES),
    st.builds(Truncate, relations=st.lists(_OIDS, max_size=5).map(tuple)),
)


def encoded(message: Message, *, old: bytes = b"O") -> bytes:
    """As PostgreSQL writes it, by its documentation."""
    if isinstance(message, Begin):
        since = message.committed - datetime(2000, 1, 1, tzinfo=UTC)
        micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        return struct.pack("!cQqI", b"B", message.lsn, micros, message.transaction)
    if isinstance(message, Commit):
        return struct.pack("!cBQQq", b"C", 0, 1, message.end, 2)
    if isinstance(message, Relation):
        columns = b"".join(
            struct.pack("!B", column.is_told) + column.name.encode() + b"\0" + struct.pack("!Ii", column.type, -1)
            for column in message.columns
        )
        names = message.schema.encode() + b"\0" + message.name.encode() + b"\0"
        return struct.pack("!cI", b"R", message.id) + names + struct.pack("!cH", b"f", len(message.columns)) + columns
    if isinstance(message, Truncate):
        return struct.pack(f"!cIB{len(message.relations)}I", b"T", len(message.relations), 3, *message.relations)
    letter = {Insert: b"I", Update: b"U", Delete: b"D"}[type(message)]
    found = struct.pack("!cI", letter, message.relation)
    if not isinstance(message, Insert) and message.old is not None:
        found += old + _tuple(message.old)
    return found if isinstance(message, Delete) else found + b"N" + _tuple(message.new)


def _tuple(values: Values) -> bytes:
    found = struct.pack("!H", len(values))
    for value in values:
        if isinstance(value, str):
            found += struct.pack("!cI", b"t", len(value.encode())) + value.encode()
        else:
            found += b"u" if isinstance(value, Unchanged) else b"n"
    return found


@given(MESSAGES, st.sampled_from([b"O", b"K"]))
def test_a_message_is_decoded_as_it_was_written(message: Message, old: bytes) -> None:
    data = encoded(message, old=old)
    assert decode(data) == message
    assert kind_of(data) in "BCRIUDT"
    if isinstance(message, (Insert, Update, Delete)):
        assert relation_of(data[:5]) == message.relation


@given(MESSAGES, st.data())
def test_a_message_that_was_cut_is_an_error_and_not_another_message(message: Message, data: st.DataObject) -> None:
    whole = encoded(message)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ValueError, match="pgoutput"):
        decode(whole[:cut])


@given(st.binary(max_size=60))
@example(b"B" + bytes(8) + b"\x03\x81" + bytes(10))  # committed after the year 9999
def test_whatever_comes_is_a_message_or_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        decode(data)


@pytest.mark.parametrize("letter", ["O", "Y", "M"])
def test_what_tells_nothing_of_rows_is_passed_over(letter: str) -> None:
    assert decode(letter.encode() + b"whatever") is None
