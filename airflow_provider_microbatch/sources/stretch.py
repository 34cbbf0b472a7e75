"""A table's stream in stretches, and where a range of it ends: files of one snapshot, then what each version has.

What sources share whose tables have versions. Looks at nothing but what it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from airflow_provider_microbatch.sources import Figures

BEFORE_ITS_FILES = -1
"""The index of a version of which nothing has been read."""


@dataclass(frozen=True, kw_only=True)
class Spot:
    """Where a range ends: the files of ``version`` up to ``index`` are read, and all that comes before them.

    A version of which all is read is told as the next number, of which nothing is.

    :param version: by which versions are in order.
    :param index: of a file of it, in the order of the plan.
    :param in_snapshot: whether it is the files of the table at that version that are read, and not those that the
        version has added.
    """

    version: int
    index: int = BEFORE_ITS_FILES
    in_snapshot: bool = False

    @property
    def order(self) -> tuple[int, bool, int]:
        """Of two places of one table, the one with the greater order lies after the other."""
        return (self.version, self.in_snapshot, self.index)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What is read as a whole: a file, or all that a version has.

    :param path: by which it is known.
    :param size: in bytes; 0 if that is not known.
    :param rows: how many; None if that is not known.
    :param files: how many it is of.
    """

    path: str
    size: int
    rows: int | None = None
    files: int = 1


U = TypeVar("U", bound=Unit)
S = TypeVar("S", bound=Spot)


@dataclass(frozen=True, kw_only=True)
class Stretch(Generic[U]):
    """The files of a snapshot, or what one version has.

    :param files: in order.
    :param is_one: whether they are read together, or not at all.
    :param is_other: whether rows have another schema from here on: no range has both.
    :param refused: why it can be neither read nor passed over, in words.
    :param passed_over: what it has that is not read, in words, as the source is set.
    """

    version: int
    in_snapshot: bool = False
    files: tuple[U, ...] = ()
    is_one: bool = False
    is_other: bool = False
    refused: str | None = None
    passed_over: str | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a range has at most; None is no limit."""

    files: int | None = None
    bytes: int | None = None
    rows: int | None = None

    def allow(self, files: Iterable[Unit]) -> bool:
        """Whether all of them may be in one range."""
        found = figures_of(files)
        pairs = ((self.files, found.splits), (self.bytes, found.bytes), (self.rows, found.rows))
        return all(most is None or count is None or count <= most for most, count in pairs)

    def __and__(self, other: Limits) -> Limits:
        """The narrower of both."""
        return Limits(
            files=_least(self.files, other.files),
            bytes=_least(self.bytes, other.bytes),
            rows=_least(self.rows, other.rows),
        )


class Refused(Exception):
    """The next stretch can be neither read nor passed over."""


def end_of(start: S, stretches: Iterable[Stretch[U]], limits: Limits) -> S:
    """Where the range ends that begins at ``start``: the same place, if there is nothing. Each range has at least one
    unit, whatever the limits are.

    :param stretches: from the start's own on, in order; asked for as far as the range goes.
    :raises Refused: if there is no way on from the start.
    """
    end, taken = start, list[U]()
    for stretch in stretches:
        if stretch.refused is not None:
            if taken:
                break
            raise Refused(stretch.refused)
        if taken and stretch.is_other:
            break
        for index, files in _parts(stretch, start):
            if taken and not limits.allow([*taken, *files]):
                return end
            taken += files
            end = replace(start, version=stretch.version, index=index, in_snapshot=stretch.in_snapshot)
        if taken:
            end = replace(start, version=stretch.version + 1, index=BEFORE_ITS_FILES, in_snapshot=False)
    return end


def between(start: Spot, end: Spot, stretches: Iterable[Stretch[U]]) -> Iterator[Stretch[U]]:
    """What lies in a range: the stretches of it, each with just the files that the range has.

    :param stretches: from the start's own on, in order.
    """
    for stretch in stretches:
        here = Spot(version=stretch.version, in_snapshot=stretch.in_snapshot)
        if here.order >= end.order:
            return
        files = [one for index, part in _parts(stretch, start) for one in part if _before(stretch, index, end)]
        yield replace(stretch, files=tuple(files))


def figures_of(files: Iterable[Unit]) -> Figures:
    """How much there is in them."""
    found = list(files)
    rows = [file.rows for file in found]
    known = None if None in rows else sum(count for count in rows if count is not None)
    return Figures(splits=sum(file.files for file in found), bytes=sum(file.size for file in found), rows=known)


def passed_over(stretches: Iterable[Stretch[U]]) -> dict[str, str]:
    """What is not read, in words by version."""
    return {str(one.version): one.passed_over for one in stretches if one.passed_over is not None}


def _parts(stretch: Stretch[U], start: Spot) -> Iterator[tuple[int, list[U]]]:
    """What of a stretch comes after the start and cannot be divided, with the index at which it ends."""
    is_within = (stretch.version, stretch.in_snapshot) == (start.version, start.in_snapshot)
    first = start.index + 1 if is_within else 0
    files = list(stretch.files)
    if stretch.is_one:
        if files[first:]:
            yield len(files) - 1, files
        return
    for index in range(first, len(files)):
        yield index, [files[index]]


def _before(stretch: Stretch[U], index: int, end: Spot) -> bool:
    return (stretch.version, stretch.in_snapshot, index) <= end.order


def _least(*given: int | None) -> int | None:
    return min((one for one in given if one is not None), default=None)
