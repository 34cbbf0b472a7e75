"""Operators that keep state, and sides of joins, by what a batch has told of them: which changes are refused."""

from __future__ import annotations

import pytest

from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.other_state import columns_told, refuse_moved_columns, refuse_moved_state

Places = list[list[list[object]]]


def part(sources: str, made: str = "m") -> list[object]:
    """A part of the plan: sources, each a letter; how it is made, which may begin with an alias (``l:``); that without
    it, without its numbers, and without both."""
    bare = made.rpartition(":")[2]
    return [list(sources), made, bare, *(one.rstrip("0123456789") for one in (made, bare))]


A, B, C = part("a"), part("b"), part("c")


def chain(*codes: str) -> Places:
    """Processors of a source, each made of those behind it, with their codes; what is no processor has an empty one."""
    made = ["".join(codes[at:]) + " of rows" for at in range(len(codes))]
    return [[[*part("a", text), code or text]] for text, code in zip(made, codes, strict=True)]


MOVED: dict[str, tuple[Places, Places]] = {
    "two operators": ([[A], [B]], [[B], [A]]),
    "the sides of a join": ([[A, B]], [[B, A]]),
    "one of them was changed as well": ([[A], [B]], [[part("b", "n")], [A]]),
    "the second and the third of three streams": ([[part("ab"), C], [A, B]], [[part("ac"), B], [A, C]]),
    "the first and the third": ([[part("ab"), C], [A, B]], [[part("bc"), A], [C, B]]),
    "two operators of one source": ([[part("a", "x")], [part("a", "y")]], [[part("a", "y")], [part("a", "x")]]),
    "sides of one source": ([[part("a", "x"), part("a", "y")]], [[part("a", "y"), part("a", "x")]]),
    "beside a number of the batch": ([[part("a", "x1"), part("a", "y1")]], [[part("a", "y2"), part("a", "x2")]]),
    "of which one reads more": ([[part("ab", "x")], [part("a", "y")]], [[part("a", "y")], [part("ab", "x")]]),
}

MOVED |= {
    "of which one reads more, and whose text is another in each batch": (
        [[part("a", "p")], [part("ab", "q")]],
        [[part("ab", "r")], [part("a", "s")]],
    ),
    "one takes the place of the other, which reads more": ([[A], [B]], [[B], [part("ab")]]),
    "below one that is made of them": (
        [[part("a", "xy")], [part("a", "x")], [part("a", "y")]],
        [[part("a", "yx")], [part("a", "y")], [part("a", "x")]],
    ),
    "beside one that was changed": (
        [[part("a", "z")], [part("a", "x")], [part("a", "y")]],
        [[part("a", "w")], [part("a", "y")], [part("a", "x")]],
    ),
    "sides whose aliases stay": (
        [[part("a", "l:x1"), part("a", "r:x2")]],
        [[part("a", "l:x2"), part("a", "r:x1")]],
    ),
    "sides that are told apart by their aliases": (
        [[part("a", "l:x"), part("a", "r:x")]],
        [[part("a", "r:x"), part("a", "l:x")]],
    ),
    "a processor, as one behind it goes and another comes in front": (chain("A", "B"), chain("B", "C")),
    "a processor beside what is none": (chain("A", "", "B"), chain("", "A", "C")),
    "so are sides": ([[part("a", "p"), part("ab", "q")]], [[part("ab", "r"), part("a", "s")]]),
}

STAYING: dict[str, tuple[Places, Places]] = {
    "nothing": ([[A, B], [C]], [[A, B], [C]]),
    "another filter": ([[part("a", "x")], [part("a", "y")]], [[part("a", "z")], [part("a", "y")]]),
    "a number of the batch": ([[part("a", "x1"), part("a", "y1")]], [[part("a", "x2"), part("a", "y2")]]),
    "a source is removed from one": ([[part("ab", "u")], [A]], [[part("a", "v")], [A]]),
    "a source is removed from one that is as the other by then": ([[part("ab", "u")], [A]], [[A], [A]]),
    "a source is removed from a side": ([[A, part("ab", "u")]], [[A, A]]),
    "a source is added to one": ([[A], [part("ab", "u")]], [[part("ab", "v")], [part("ab", "u")]]),
    "a source in the place of another": ([[A], [B]], [[C], [B]]),
    "each is what the next one was in the batch before": (
        [[part("a", "d5")], [part("a", "d4")]],
        [[part("a", "d6")], [part("a", "d5")]],
    ),
    "one more, and one less": (
        [[part("a", "x")], [part("a", "y")], [part("a", "z")]],
        [[part("a", "w")], [part("a", "x")], [part("a", "y")]],
    ),
    "what an earlier version has told": (
        [[[["a"], "x", "x"]], [[["a"], "y", "y"]]],
        [[part("a", "x")], [part("a", "y")]],
    ),
    "a processor in the place of another": (chain("A", "B"), chain("A", "C")),
    "two processors of one code": (chain("A", "B", "B"), chain("C", "A", "A")),
    "one processor less, which Spark sees": (chain("A", "B"), chain("B")),
    "two sides alike": ([[A, A]], [[A, A]]),
    "nothing is known of the batch before": ([], [[A], [B]]),
}


@pytest.mark.parametrize("name", MOVED)
def test_what_has_changed_places_is_refused(name: str) -> None:
    with pytest.raises(BatchFailure, match="have changed places"):
        refuse_moved_state(*MOVED[name])


@pytest.mark.parametrize("name", STAYING)
def test_what_stays_in_its_place_goes_on(name: str) -> None:
    refuse_moved_state(*STAYING[name])


def columns(*texts: str) -> list[list[list[str]]]:
    """Of one operator, the columns of each list, a letter each."""
    return [[list(text) for text in texts]]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (columns("ab"), columns("ba")),
        (columns("ab", "c"), columns("bca", "c")),
        (columns("c", "abd"), columns("c", "bad")),
        ([*columns("ab"), *columns("xy")], [*columns("ab"), *columns("yx")]),
    ],
)
def test_columns_that_have_changed_their_order_are_refused(
    before: list[list[list[str]]], now: list[list[list[str]]]
) -> None:
    with pytest.raises(BatchFailure, match="have changed their order"):
        refuse_moved_columns(columns_told(before), now)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (columns("ab"), columns("ab")),
        (columns("ab"), columns("axb")),
        (columns("ab"), columns("b")),
        (columns("ab"), columns("cb")),
        (columns("ab", "cd"), columns("ac", "bd")),
        ([], columns("ab")),
    ],
)
def test_columns_that_come_and_go_are_left_to_spark(before: list[list[list[str]]], now: list[list[list[str]]]) -> None:
    refuse_moved_columns(columns_told(before), now)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ([*columns("a"), *columns("b")], [*columns("b"), *columns("a")]),
        ([*columns("ab"), *columns("c")], [*columns("c"), *columns("ab")]),
        ([*columns("a", "x"), *columns("b", "y")], [*columns("a", "y"), *columns("b", "x")]),
        ([*columns("a"), *columns("c"), *columns("b")], [*columns("b"), *columns("d"), *columns("a")]),
        ([*columns("a"), [], *columns("b")], [*columns("b"), [], *columns("a")]),
        ([[["a1"]], [["b1"]]], [[["b2"]], [["a2"]]]),
    ],
)
def test_operators_that_keep_by_the_columns_of_each_other_are_refused(
    before: list[list[list[str]]], now: list[list[list[str]]]
) -> None:
    with pytest.raises(BatchFailure, match="operators have changed places"):
        refuse_moved_columns(columns_told(before), now)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ([*columns("a"), *columns("b")], [*columns("a"), *columns("b")]),
        ([*columns("a"), *columns("a")], [*columns("a"), *columns("a")]),
        ([*columns("a"), *columns("b")], [*columns("c"), *columns("b")]),
        ([*columns("a"), *columns("a"), *columns("b")], [*columns("a"), *columns("c"), *columns("b")]),
        ([[["d5"]], [["d4"]]], [[["d6"]], [["d5"]]]),
        ([[], *columns("b")], [*columns("b"), *columns("a")]),
        ([*columns("a"), *columns("b", "x")], [*columns("a", "x"), *columns("b", "y")]),
        ([], [*columns("b"), *columns("a")]),
    ],
)
def test_operators_that_keep_by_columns_of_their_own_go_on(
    before: list[list[list[str]]], now: list[list[list[str]]]
) -> None:
    refuse_moved_columns(columns_told(before), now)


def test_operators_of_which_an_earlier_version_has_told_less_go_on() -> None:
    refuse_moved_columns([[[["a"]]], [[]]], [*columns("b"), *columns("a")])
