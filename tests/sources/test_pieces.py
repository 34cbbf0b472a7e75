"""Pieces of a line are sets of whole numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_microbatch.sources.pieces import Piece, common, joined, without

PIECES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)))


def numbers(pieces: list[Piece] | tuple[Piece, ...]) -> set[int]:
    return {number for start, end in pieces for number in range(start, end)}


@given(PIECES, PIECES)
def test_pieces_are_sets_of_numbers_and_one_set_has_one_form(one: list[Piece], other: list[Piece]) -> None:
    for made, expected in (
        (joined([*one, *other]), numbers(one) | numbers(other)),
        (without(one, other), numbers(one) - numbers(other)),
        (common(one, other), numbers(one) & numbers(other)),
    ):
        assert numbers(made) == expected
        assert made == joined((number, number + 1) for number in expected)
