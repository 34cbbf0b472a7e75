"""Offsets of a table whose numbers have too many gaps to list: transactions tell which rows were read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from airflow_provider_microbatch.sources.jdbc.transactions import seen

MOST_MARKS = 100
"""The largest number of marks; more are joined, so that some numbers are awaited for longer."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Numbers that may have been missed at one moment: those from ``first`` on, up to the first number of the next
    mark.

    :param first: the first of the numbers.
    :param seen_ms: the moment, by the database's clock; milliseconds since the epoch.
    :param xmax: an id above all transactions that had one at that moment, as that of a gap.
    """

    first: int
    seen_ms: int
    xmax: int


@dataclass(frozen=True, kw_only=True)
class Sparse:
    """The rows that were read up to an offset: the rows up to its number that were visible, and the rows of earlier
    batches.

    :param since: the number from which late rows of the batch are looked for.
    :param below: the first transaction id of which no row was visible.
    :param running: first and last of the ids below it that ran.
    :param marks: the awaited numbers, in order.
    :param file: file number of the table, which changes when the table is rewritten.
    :param digest: digest of the batch's rows.
    """

    since: int
    below: int
    running: tuple[tuple[int, int], ...]
    marks: tuple[Mark, ...]
    file: int
    digest: str

    @property
    def waited_from(self) -> int | None:
        """The lowest awaited number; None if there is none."""
        return self.marks[0].first if self.marks else None

    @property
    def seen(self) -> str:
        """An SQL condition for the rows that were visible."""
        return seen(self.below, self.running)

    def values(self) -> list[Any]:
        """The values as JSON has them."""
        marks = [[mark.first, mark.seen_ms, mark.xmax] for mark in self.marks]
        return [self.since, self.below, [list(span) for span in self.running], marks, self.file, self.digest]

    @classmethod
    def of(cls, values: Any) -> Self:
        """:raises TypeError: if the values are not those of :meth:`values`. They become part of SQL statements, and a
            stranger may have written them.
        :raises ValueError: likewise.
        """
        since, below, running, marks, file, digest = values
        numbers = [since, below, file, *(n for span in running for n in span), *(n for mark in marks for n in mark)]
        if not all(type(number) is int for number in numbers) or type(digest) is not str:
            raise TypeError("'sparse' has something else than whole numbers")
        if any(first > last for first, last in running):
            raise ValueError("'sparse' has transactions that end before they begin")
        return cls(
            since=since,
            below=below,
            running=tuple((first, last) for first, last in running),
            marks=tuple(Mark(first=a, seen_ms=b, xmax=c) for a, b, c in marks),
            file=file,
            digest=digest,
        )


def joined(marks: Sequence[Mark]) -> tuple[Mark, ...]:
    """Cover the same numbers by few marks: each number is awaited as long as before, or longer."""
    found = list(marks)
    while len(found) > MOST_MARKS:
        pairs = [found[at : at + 2] for at in range(0, len(found), 2)]
        found = [
            Mark(first=pair[0].first, seen_ms=max(one.seen_ms for one in pair), xmax=max(one.xmax for one in pair))
            for pair in pairs
        ]
    return tuple(found)
