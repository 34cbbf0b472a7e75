"""Streams that have source, column and delay in common: which of them goes on from which watermark."""

from __future__ import annotations

import pytest

from airflow_provider_microbatch.runtime.watermarks import turns_of


def made(text: str) -> list[str]:
    """Digests of a stream, of its text; without aliases, which it has none of; and twice without numbers."""
    return [text, text, *[text.rstrip("0123456789")] * 2]


def turns(were: dict[str, str], *now: str) -> list[str]:
    """The turns of streams by their texts, in the order of the plan, behind those of before."""
    found = turns_of("n", {turn: made(text) for turn, text in were.items()}, {text: made(text) for text in now})
    assert sorted(found) == sorted(now)
    return [found[text] for text in now]


CASES: dict[str, tuple[dict[str, str], list[str], list[str]]] = {
    "the first ones": ({}, ["x", "y"], ["n", "n#2"]),
    "they stay": ({"n": "x", "n#2": "y"}, ["x", "y"], ["n", "n#2"]),
    "they change places": ({"n": "x", "n#2": "y"}, ["y", "x"], ["n#2", "n"]),
    "with the batch's own number in them": ({"n": "x1", "n#2": "y1"}, ["y2", "x2"], ["n#2", "n"]),
    "the only one is changed": ({"n": "x"}, ["y"], ["n"]),
    "all have another text in each batch": ({"n#2": "x", "n": "y"}, ["p", "q"], ["n#2", "n"]),
    "one is changed": ({"n": "x", "n#2": "y"}, ["x", "z"], ["n", "n#3"]),
    "one is gone": ({"n": "x", "n#2": "y"}, ["y"], ["n#2"]),
    "one is added": ({"n": "y"}, ["x", "y"], ["n#2", "n"]),
    "one is gone, the other is changed": ({"n": "x", "n#2": "y"}, ["z"], ["n#3"]),
}


@pytest.mark.parametrize("name", CASES)
def test_who_goes_on_from_which_watermark(name: str) -> None:
    were, now, expected = CASES[name]
    assert turns(were, *now) == expected


def test_many_that_only_the_number_of_the_batch_changes_go_on_in_their_order() -> None:
    """By name, the tenth would come before the second."""
    names = ["n", *(f"n#{turn}" for turn in range(2, 13))]
    were = {name: f"kind{'abcdefghijkl'[at]}1" for at, name in enumerate(names)}
    assert turns(were, *(f"kind{letter}2" for letter in "abcdefghijkl")) == names
    assert turns(dict.fromkeys(names, "x1"), *(f"x{number}" for number in range(2, 14))) == names
