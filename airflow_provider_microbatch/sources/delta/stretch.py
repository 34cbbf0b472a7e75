"""The stream of a table in stretches, and where a range of it ends. Looks at nothing but what it is given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from airflow_provider_microbatch.sources import Figures
from airflow_provider_microbatch.sources.delta.commits import File
from airflow_provider_microbatch.sources.delta.offset import BEFORE_ITS_FILES, Place


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """The files of a snapshot, or what one version has.

    :param files: in order.
    :param is_one: whether they are read together, or not at all.
    :param is_other: whether rows have another schema from here on: no range has both.
    :param refused: why it can be neither read nor passed over, in words.
    :param passed_over: what it has that is not read, in words, as the source is set.
    """

    version: int
    in_snapshot: bool = False
    files: tuple[File, ...] = ()
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

    def allow(self, files: Iterable[File]) -> bool:
        """Whether all of them may be in one range."""
        found = figures_of(files)
        pairs = ((self.files, found.splits), (self.bytes, found.bytes), (self.rows, found.rows))
        return all(most is None or count is None or count <= most for most, count in pairs)


class Refused(Exception):
    """The next stretch can be neither read nor passed over."""


def end_of(start: Place, stretches: Iterable[Stretch], limits: Limits) -> Place:
    """Where the range ends that begins at ``start``: the same place, if there is nothing. Each range has at least one
    file, whatever the limits are.

    :param stretches: from the start's own on, in order; asked for as far as the range goes.
    :raises Refused: if there is no way on from the start.
    """
    end, taken = start, list[File]()
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


def between(start: Place, end: Place, stretches: Iterable[Stretch]) -> Iterator[Stretch]:
    """What lies in a range: the stretches of it, each with just the files that the range has.

    :param stretches: from the start's own on, in order.
    """
    for stretch in stretches:
        here = Place(version=stretch.version, in_snapshot=stretch.in_snapshot)
        if here.order >= end.order:
            return
        files = [one for index, part in _parts(stretch, start) for one in part if _before(stretch, index, end)]
        yield replace(stretch, files=tuple(files))


def figures_of(files: Iterable[File]) -> Figures:
    """Their count, and how much there is in them."""
    found = list(files)
    rows = [file.rows for file in found]
    known = None if None in rows else sum(count for count in rows if count is not None)
    return Figures(splits=len(found), bytes=sum(file.size for file in found), rows=known)


def _parts(stretch: Stretch, start: Place) -> Iterator[tuple[int, list[File]]]:
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


def _before(stretch: Stretch, index: int, end: Place) -> bool:
    return (stretch.version, stretch.in_snapshot, index) <= end.order
