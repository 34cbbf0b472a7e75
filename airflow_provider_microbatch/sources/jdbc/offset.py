"""Offsets of a table that is read by an incrementing column."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.sources.jdbc.identity import Identity, told_behind
from airflow_provider_microbatch.sources.jdbc.sparse import Sparse
from airflow_provider_microbatch.sources.pieces import without

NOT_TAKEN = 2**63 - 1
"""In place of a transaction's id, of numbers that no transaction had taken."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Numbers that were not visible when a later number was read.

    :param first: the first of the numbers.
    :param last: the last of the numbers.
    :param seen_ms: when they were first missed, by the database's clock; milliseconds since the epoch.
    :param xmax: an id above all transactions that had one then: one that may still commit one of the numbers has a
        lower id. Older versions wrote the snapshot's own ``xmax``, which is lower than the newest that ran.
        :data:`NOT_TAKEN` where each that may do so has yet to take its number.
    """

    first: int
    last: int
    seen_ms: int
    xmax: int


@dataclass(frozen=True, kw_only=True)
class Table(Identity):
    """A table that is created again under its name has other rows under the same numbers.

    :param sequence: the file number of the sequence that the column owns, which changes when the sequence begins again
        (``TRUNCATE … RESTART IDENTITY``); None if the column owns none. The rest as :class:`Identity` has it.
    """

    sequence: int | None


@dataclass(frozen=True, kw_only=True)
class Place:
    """The end of a batch. The end and the number at which the previous batch ended determine the rows of the batch:
    those in between that are in no gap, and those that came late.

    :param number: the highest number that was read.
    :param gaps: the missed numbers below it, in order.
    :param late: first and last of numbers that were gaps of the previous batch and are rows of this one, in order.
    :param rows: number of rows in the batch.
    :param sparse: used instead of gaps, where there are too many: the visible transactions, which tell which rows were
        read. ``late`` then has the numbers that were gaps listed in the previous offset.
    :param table: the table of the numbers; None where nothing has been read of the table, or an older version wrote it.
    :param by_hand: whether a user wrote the offset, for the current table: ``{"n": 23}``, with ``gaps`` or without.
    """

    number: int
    gaps: tuple[Gap, ...] = ()
    late: tuple[tuple[int, int], ...] = ()
    rows: int = 0
    sparse: Sparse | None = None
    table: Table | None = None
    by_hand: bool = False

    def text(self) -> Offset:
        """Return the text that the logs store."""
        gaps = [[gap.first, gap.last, gap.seen_ms, gap.xmax] for gap in self.gaps]
        written: dict[str, Any] = {"n": self.number, "gaps": gaps}
        if not self.by_hand:
            written |= {"late": [list(span) for span in self.late], "rows": self.rows}
        if self.sparse is not None:
            written["sparse"] = self.sparse.values()
        if self.table is not None:
            of = self.table
            written["of"] = [of.name, of.oid, of.sequence, *of.values_behind()]
        return json.dumps(written)

    @classmethod
    def of(cls, offset: Offset) -> Self:
        """:raises ValueError: if the text is not a place."""
        try:
            values: Any = json.loads(offset)
            by_hand = isinstance(values, dict) and values.keys() in ({"n"}, {"n", "gaps"})
            if by_hand:
                values = {"gaps": [], "late": [], "rows": 0, **values}
            if isinstance(values, dict) and "t" in values:
                raise TypeError(
                    "it is of a table that was read by timestamps, of which numbers tell nothing: name timestamp= as "
                    "it was, or have the source begin anew under another name"
                )
            if not isinstance(values, dict) or values.keys() - {"of", "sparse"} != {"n", "gaps", "late", "rows"}:
                raise TypeError("it has other fields than n, gaps, late, rows and of; by hand, n and gaps")
            table = _table(values["of"]) if "of" in values else None
            sparse = Sparse.of(values["sparse"]) if "sparse" in values else None
            if type(values["gaps"]) is not list or any(
                type(one) is not list or len(one) != 4 for one in values["gaps"]
            ):
                raise TypeError(
                    "each of 'gaps' is [first, last, milliseconds when it was missed, first transaction behind]"
                )
            gaps = tuple(Gap(first=a, last=b, seen_ms=c, xmax=d) for a, b, c, d in values["gaps"])
            late = tuple((a, b) for a, b in values["late"])
            numbers: list[Any] = [values["n"], values["rows"], *(n for span in values["late"] for n in span)]
            numbers += [n for gap in values["gaps"] for n in gap]
            if not all(type(number) is int for number in numbers):
                raise TypeError("it has something else than whole numbers")
            if any(first > last for first, last in [*((gap.first, gap.last) for gap in gaps), *late]):
                raise ValueError("it has numbers that end before they begin")
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{offset:.200} is no place in a table: {error}") from error
        place = cls(number=values["n"], gaps=gaps, late=late, rows=values["rows"], table=table, by_hand=by_hand)
        return replace(place, sparse=sparse)

    @property
    def has_numbers_once(self) -> bool:
        """Whether no number is in two gaps, nor in one behind ``number``: its row would be in a batch twice."""
        ends = [*(gap.first - 1 for gap in self.gaps[1:]), self.number]
        return all(gap.last <= end for gap, end in zip(self.gaps, ends, strict=False))

    def waits_for_less(self, other: Self) -> bool | None:
        """Whether this place lies after another of the same number, since its gaps are numbers of the other's gaps. Of
        equal ones, as also of one by hand that waits for nothing, the one by hand: no row comes twice from there on.
        None if neither lies after the other, or if nobody can tell: of a sparse one transactions tell what it waits
        for."""
        mine, others = ([(gap.first, gap.last + 1) for gap in place.gaps] for place in (self, other))
        more, less = without(mine, others), without(others, mine)
        if not more and not less:
            return None if self.by_hand == other.by_hand else self.by_hand
        if (more and less) or self.sparse is not None or other.sparse is not None:
            return None
        return not more

    def conditions(self, start: Self, column: str, parts: int, *, replayed: bool = True) -> list[str]:
        """Return SQL conditions for the rows of a range that ends here, in about ``parts`` parts, in addition to the
        late rows.

        :param column: as SQL has it.
        :param replayed: leave out rows that were not visible when the range was planned; False for the plan itself,
            which is made from the rows that are visible now.
        """
        ahead, late = [(start.number + 1, self.number)] if start.number < self.number else [], list(self.late)
        found = [between(column, part) for part in divided(ahead, parts)] + ([between(column, late)] if late else [])
        if self.sparse is None:
            return [between(column, part) for part in divided(self.spans(start.number), parts)]
        if start.sparse is not None:
            found.append(start.unseen(column, self.sparse.since))
        return [f"({one}) AND {self.sparse.seen}" if replayed else f"({one})" for one in found]

    def unseen(self, column: str, since: int | None) -> str:
        """Return an SQL condition for rows up to here that were not visible when this place was planned.

        :param since: the number from which to look.
        """
        if self.sparse is None or since is None:
            return "false"
        return f"{column} BETWEEN {since} AND {self.number} AND NOT ({self.sparse.seen})"

    def spans(self, start: int) -> list[tuple[int, int]]:
        """First and last of the numbers of a batch that ends here and begins after ``start``, without the numbers
        within that were not visible when the batch was planned."""
        found, first = [*self.late], start + 1
        for gap in self.gaps:
            if gap.first > start:
                if first < gap.first:
                    found.append((first, gap.first - 1))
                first = gap.last + 1
        return [*found, *([(first, self.number)] if first <= self.number else [])]


def as_taken(gaps: Iterable[Gap], new: Iterable[Gap] = (), *, given: int | None, now_ms: int, bound: int) -> list[Gap]:
    """The same numbers. The wait for one begins once it is taken: a row may lie far ahead of the sequence, and what is
    given in between, whenever that is, would else be given up as soon as it is there, with its transaction at work.

    :param new: those behind them that were not missed before.
    :param given: the number that the sequence gave last; None if that is unknown: all new ones may have been taken, and
        of those of before none has been since.
    :param now_ms: the time, as a gap has it.
    :param bound: an id above all transactions that have one now.
    """
    found = []
    for gap, is_new in [*((one, False) for one in gaps), *((one, True) for one in new)]:
        last = gap.last if given is None else min(given, gap.last)
        if given is None and gap.xmax == NOT_TAKEN and not is_new:
            last = gap.first - 1
        if gap.first <= last:
            taken = replace(gap, last=last)
            found.append(replace(taken, seen_ms=now_ms, xmax=bound) if gap.xmax == NOT_TAKEN else taken)
        if last < gap.last:
            found.append(replace(gap, first=max(gap.first, last + 1), xmax=NOT_TAKEN))
    return found


def between(column: str, spans: Sequence[tuple[int, int]]) -> str:
    """An SQL condition for the rows with numbers in the spans, of which there is at least one."""
    return " OR ".join(f"{column} BETWEEN {first} AND {last}" for first, last in spans)


def _table(values: Any) -> Table:
    name, oid, sequence, *cluster = values
    if type(name) is not str or type(oid) is not int or (sequence is not None and type(sequence) is not int):
        raise TypeError("'of' is not the name, the oid and the sequence's file of a table")
    return Table(name=name, oid=oid, sequence=sequence, **told_behind(cluster))


def divided(spans: Sequence[tuple[int, int]], parts: int) -> list[list[tuple[int, int]]]:
    """Divide the numbers into at most ``parts`` lists of about equal size."""
    total = sum(last - first + 1 for first, last in spans)
    size, room = -(-total // parts) or 1, 0
    found: list[list[tuple[int, int]]] = []
    for first, last in spans:
        while first <= last:
            if room == 0:
                found.append([])
                room = size
            taken = min(room, last - first + 1)
            found[-1].append((first, first + taken - 1))
            first, room = first + taken, room - taken
    return found
