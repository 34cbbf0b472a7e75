"""Offsets of a table whose numbers have more gaps than can be listed: the transactions tell what was read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from airflow_provider_microbatch.sources.jdbc.transactions import seen

MOST_MARKS = 100
"""So many moments tell how long numbers are waited for; more are joined, and some are waited for longer."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Numbers that may have been missed at one moment: those from ``first`` on, up to that of the next mark.

    :param first: the first of them.
    :param seen_ms: when, by the database's clock; milliseconds since the epoch.
    :param xmax: the first transaction id that was not given out then.
    """

    first: int
    seen_ms: int
    xmax: int


@dataclass(frozen=True, kw_only=True)
class Sparse:
    """What was read up to an offset: the rows up to its number that could be seen, with those of before.

    :param since: late rows of the batch are looked for from this number on.
    :param below: the first transaction id that was not given out.
    :param running: first and last of ids below it that ran.
    :param marks: which numbers are waited for, in order.
    :param file: of the table, which is another one once it is written anew.
    :param digest: of the batch's rows.
    """

    since: int
    below: int
    running: tuple[tuple[int, int], ...]
    marks: tuple[Mark, ...]
    file: int
    digest: str

    @property
    def waited_from(self) -> int | None:
        """The lowest number that is waited for; None if there is none."""
        return self.marks[0].first if self.marks else None

    @property
    def seen(self) -> str:
        """Rows that could be seen, in SQL."""
        return seen(self.below, self.running)

    def values(self) -> list[Any]:
        """As JSON has it."""
        marks = [[mark.first, mark.seen_ms, mark.xmax] for mark in self.marks]
        return [self.since, self.below, [list(span) for span in self.running], marks, self.file, self.digest]

    @classmethod
    def of(cls, values: Any) -> Self:
        """:raises TypeError: if the values are none. They stand in statements: a stranger may have written them.
        :raises ValueError: likewise."""
        since, below, running, marks, file, digest = values
        numbers = [since, below, file, *(n for span in running for n in span), *(n for mark in marks for n in mark)]
        if not all(type(number) is int for number in numbers) or type(digest) is not str:
            raise TypeError("'sparse' has something else than whole numbers")
        return cls(
            since=since,
            below=below,
            running=tuple((first, last) for first, last in running),
            marks=tuple(Mark(first=a, seen_ms=b, xmax=c) for a, b, c in marks),
            file=file,
            digest=digest,
        )


def joined(marks: Sequence[Mark]) -> tuple[Mark, ...]:
    """The same numbers by few marks: each is waited for as long as before, or longer."""
    found = list(marks)
    while len(found) > MOST_MARKS:
        pairs = [found[at : at + 2] for at in range(0, len(found), 2)]
        found = [Mark(first=pair[0].first, seen_ms=pair[-1].seen_ms, xmax=pair[-1].xmax) for pair in pairs]
    return tuple(found)


def spans_of(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """First and last of those that follow each other."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return tuple(found)
