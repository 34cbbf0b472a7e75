"""Sets of offsets, shares of a limit, and the text of a position: without a broker."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.sources.kafka.offsets import parse, render
from airflow_provider_microbatch.sources.kafka.pieces import Pieces
from airflow_provider_microbatch.sources.kafka.share import limited

PARTITION = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2))
PIECE = st.tuples(st.integers(0, 30), st.integers(0, 30))
PIECES = st.lists(st.tuples(PARTITION, PIECE)).map(Pieces.made)
POSITION = st.dictionaries(PARTITION, st.integers(0, 60), min_size=1)


def one_by_one(pieces: Pieces) -> set[tuple[tuple[str, int], int]]:
    return {(partition, offset) for partition, (start, end) in pieces for offset in range(start, end)}


@given(PIECES, PIECES)
def test_pieces_are_sets_of_offsets(one: Pieces, other: Pieces) -> None:
    for made, expected in (
        (one | other, one_by_one(one) | one_by_one(other)),
        (one - other, one_by_one(one) - one_by_one(other)),
        (one & other, one_by_one(one) & one_by_one(other)),
    ):
        assert one_by_one(made) == expected
        assert made.count == len(expected)
        assert bool(made) == bool(expected)
        assert made == Pieces.made(made), "one set has one form: whether two are equal is asked of them"


@given(PIECES)
def test_pieces_travel_as_json_and_by_layers(pieces: Pieces) -> None:
    assert Pieces.from_json(json.loads(json.dumps(pieces.to_json())), where="here") == pieces
    layers = [
        ((topic, int(number)), (start, end))
        for layer in pieces.layers()
        for topic, parts in layer.items()
        for number, (start, end) in parts.items()
    ]
    assert sorted(layers) == sorted(pieces)
    assert all(layer for layer in pieces.layers())


@given(POSITION, st.data(), st.one_of(st.none(), st.integers(1, 40)))
def test_a_limit_is_shared_and_never_gone_beyond(
    start: dict[tuple[str, int], int], data: st.DataObject, most: int | None
) -> None:
    end = {one: at + data.draw(st.integers(0, 50)) for one, at in start.items()}
    found = limited(start, end, most)
    taken = {one: found[one] - start[one] for one in end}
    behind = {one: end[one] - start[one] for one in end}
    total = sum(behind.values())
    assert all(0 <= taken[one] <= behind[one] for one in end)
    assert sum(taken.values()) <= (total if most is None else most)
    if total:
        assert sum(taken.values()) > 0
    if most is None or total <= most:
        assert found == end
    elif most >= sum(map(bool, behind.values())):
        # As Spark shares it, but for what it would be too much.
        assert all(taken[one] for one in end if behind[one])
        assert all(taken[one] <= max(1, behind[one] * most // total) for one in end)


def test_shares_are_in_proportion_to_how_far_each_is_behind() -> None:
    start = {("a", 0): 100, ("a", 1): 0, ("a", 2): 7}
    end = {("a", 0): 1000, ("a", 1): 99, ("a", 2): 8}
    assert limited(start, end, 100) == {("a", 0): 190, ("a", 1): 9, ("a", 2): 8}


@given(st.integers(2, 9), st.data())
def test_none_waits_for_ever_where_there_are_more_than_a_batch_may_have(partitions: int, data: st.DataObject) -> None:
    position = {("a", number): data.draw(st.integers(0, 99)) for number in range(partitions)}
    quiet = ("a", data.draw(st.integers(0, partitions - 1)))
    most = data.draw(st.integers(1, partitions - 1))
    its_own = position[quiet]
    for _ in range(-(-partitions // most)):
        there = {one: its_own + 1 if one == quiet else at + 9 for one, at in position.items()}
        position = limited(position, there, most)
    assert position[quiet] == its_own + 1


@given(POSITION)
def test_a_position_reads_back_as_it_was_and_is_written_in_one_way(position: dict[tuple[str, int], int]) -> None:
    text = render(position)
    assert parse(text, where="here") == position
    assert render(dict(reversed(position.items()))) == text
    assert " " not in text


@pytest.mark.parametrize(
    "text", ["", "3", "[]", '{"a":3}', '{"a":{"x":3}}', '{"a":{"0":-1}}', '{"a":{"0":1.5}}', '{"a":{"-1":2}}']
)
def test_what_is_no_position_is_refused_by_name(text: str) -> None:
    with pytest.raises(CorruptEntryError, match="source 'orders'"):
        parse(text, where="source 'orders'")
