"""Splits a table's stream into stretches: the files of one snapshot, then those of each version; finds the end of a
range.

Shared by the sources whose tables have versions. Uses nothing but its arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from airflow_provider_microbatch.sources import Figures

BEFORE_ITS_FILES = -1
"""The index in a version of which nothing has been read."""


@dataclass(frozen=True, kw_only=True)
class Spot:
    """The end of a range: the files of ``version`` up to ``index`` are read, and everything before them.

    A version that is read completely is written as the next version number, of which nothing is read.

    :param version: number that orders the versions.
    :param index: index of a file of the version, in the order of the plan.
    :param in_snapshot: whether the files are those of the table at that version, rather than those that the version has
        added.
    """

    version: int
    index: int = BEFORE_ITS_FILES
    in_snapshot: bool = False

    @property
    def order(self) -> tuple[int, bool, int]:
        """The sort key: of two places of one table, the place with the greater key lies after the other."""
        return (self.version, self.in_snapshot, self.index)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A unit that is read as a whole: a file, or all files of a version.

    :param path: path that identifies the unit.
    :param size: in bytes; 0 if not known.
    :param rows: number of rows; None if not known.
    :param files: number of files in the unit.
    """

    path: str
    size: int
    rows: int | None = None
    files: int = 1


U = TypeVar("U", bound=Unit)
S = TypeVar("S", bound=Spot)


@dataclass(frozen=True, kw_only=True)
class Stretch(Generic[U]):
    """The files of a snapshot, or of one version.

    :param files: in order.
    :param is_one: whether the files are read together, or not at all.
    :param is_other: whether rows have another schema from this stretch on: no range has rows of both schemas.
    :param is_old: whether it was committed so long ago that the table may soon forget it.
    :param refused: the reason, in words, why the stretch can be neither read nor passed over.
    :param passed_over: description of the changes that are not read, as the source is set.
    """

    version: int
    in_snapshot: bool = False
    files: tuple[U, ...] = ()
    is_one: bool = False
    is_other: bool = False
    is_old: bool = False
    refused: str | None = None
    passed_over: str | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a range has at most; None means no limit."""

    files: int | None = None
    bytes: int | None = None
    rows: int | None = None

    def allow(self, files: Iterable[Unit]) -> bool:
        """Whether all of the files may be in one range."""
        found = figures_of(files)
        pairs = ((self.files, found.splits), (self.bytes, found.bytes), (self.rows, found.rows))
        return all(most is None or count is None or count <= most for most, count in pairs)

    def __and__(self, other: Limits) -> Limits:
        """The narrower of both limits, for each unit."""
        return Limits(
            files=_least(self.files, other.files),
            bytes=_least(self.bytes, other.bytes),
            rows=_least(self.rows, other.rows),
        )


class Refused(Exception):
    """The next stretch can be neither read nor passed over."""


def end_of(start: S, stretches: Iterable[Stretch[U]], limits: Limits) -> S:
    """Return the end of the range that begins at ``start``; ``start`` itself if there is nothing. Each range has at
    least one unit, whatever the limits are; but for a range without a unit, which ends behind stretches that are old.
    Else a position would stay before them, and once the table has forgotten them nobody knows that they had no rows.

    :param stretches: stretches in order, beginning with the stretch of ``start``; iterated only as far as the range
        goes.
    :raises Refused: if a stretch that can be neither read nor passed over comes before the first unit.
    """
    end, behind, taken, is_old = start, start, list[U](), False
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
        behind = replace(start, version=stretch.version + 1, index=BEFORE_ITS_FILES, in_snapshot=False)
        is_old = is_old or stretch.is_old
        end = behind if taken else end
    return behind if is_old and not taken else end


def between(start: Spot, end: Spot, stretches: Iterable[Stretch[U]]) -> Iterator[Stretch[U]]:
    """Yield the stretches of a range, each with only the files that the range has.

    :param stretches: stretches in order, beginning with the stretch of ``start``.
    """
    for stretch in stretches:
        here = Spot(version=stretch.version, in_snapshot=stretch.in_snapshot)
        if here.order >= end.order:
            return
        files = [one for index, part in _parts(stretch, start) for one in part if _before(stretch, index, end)]
        yield replace(stretch, files=tuple(files))


def figures_of(files: Iterable[Unit]) -> Figures:
    """Return how much data is in the files."""
    found = list(files)
    rows = [file.rows for file in found]
    known = None if None in rows else sum(count for count in rows if count is not None)
    return Figures(splits=sum(file.files for file in found), bytes=sum(file.size for file in found), rows=known)


def passed_over(stretches: Iterable[Stretch[U]]) -> dict[str, str]:
    """Return descriptions of the changes that are not read, by version."""
    return {str(one.version): one.passed_over for one in stretches if one.passed_over is not None}


def _parts(stretch: Stretch[U], start: Spot) -> Iterator[tuple[int, list[U]]]:
    """Yield the indivisible parts of a stretch that come after the start, each with the index of its last file."""
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
