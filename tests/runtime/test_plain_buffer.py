"""What Tablestore's formats hold is read as it was written, and nothing that is cut off passes for whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_microbatch.runtime.plain_buffer import Stamp, Value, row_of
from airflow_provider_microbatch.runtime.protobuf import Message, encoded
from tests.support.tablestore_rows import DELETED, DELETED_VERSION, row

names = st.text(max_size=9)
keys = st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(max_size=9), st.binary(max_size=9))
values = st.one_of(keys, st.floats(allow_nan=False), st.booleans())
stamps = st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**62), st.integers(0, 2**31 - 1))


@settings(max_examples=30)
@given(
    key=st.dictionaries(names, keys, max_size=3),
    columns=st.dictionaries(names, st.one_of(values, st.sampled_from([DELETED, DELETED_VERSION])), max_size=4),
    stamp=st.none() | stamps,
    deletes=st.booleans(),
)
def test_a_row_is_read_as_it_was_written(
    key: dict[str, Value], columns: dict[str, object], stamp: Stamp | None, deletes: bool
) -> None:
    data = row(key, columns, stamp=stamp, deletes=deletes)
    found = row_of(data)
    assert {cell.name: cell.value for cell in found.key} == key
    put = {name: value for name, value in columns.items() if not isinstance(value, dict)}
    assert {cell.name: cell.value for cell in found.cells if cell.deletes is None} == put
    assert {type(cell.value) for cell in found.cells} - {type(None)} == {type(value) for value in put.values()}
    assert [cell.name for cell in found.cells] == list(columns)
    assert found.sequence == stamp
    for size in range(len(data)):
        with pytest.raises(ValueError, match=r"PlainBuffer|type that is not known"):
            row_of(data[:size])


numbers = st.integers(-(2**63), 2**63 - 1)


@given(st.dictionaries(st.integers(1, 2000), st.one_of(numbers, st.text(), st.binary(), st.lists(st.binary()))))
def test_a_message_is_read_as_it_was_written(fields: dict[int, int | str | bytes | list[bytes]]) -> None:
    message = Message(encoded(fields))
    for field, value in fields.items():
        if isinstance(value, int):
            assert message.number(field) == value
        elif isinstance(value, str):
            assert message.text(field) == value
        elif isinstance(value, bytes):
            assert message.data(field) == value
        else:
            assert message.has(field) == any(value[-1:])


def test_what_is_no_message_is_refused() -> None:
    whole = encoded({1: "text", 2: 300})
    assert Message(whole + b"\x1d\0\0\0\0" + b"\x21" + bytes(8)).number(2) == 300, (
        "what is not asked for is passed over"
    )
    for data in (whole[:3], whole[:-1], b"\x0b", b"\x80" * 11):
        with pytest.raises(ValueError, match="Protocol Buffers"):
            Message(data)
