"""The amount of data of a source, in figures and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The amount of data in a range or after a position, known without reading the data. None where the source cannot
    tell cheaply.

    :param splits: number of the source's smallest units, which :attr:`.OpenSource.splits` names.
    """

    rows: int | None = None
    bytes: int | None = None
    splits: int | None = None


def worded(figures: Any, *, splits: str) -> dict[str, int]:
    """Figures in the words of their source.

    :param figures: :class:`Figures`; of a source that was written before figures had names, by its own words.
    :param splits: see :attr:`.OpenSource.splits`.
    """
    if isinstance(figures, Mapping):
        return {str(word): count for word, count in figures.items() if type(count) is int}
    told = {splits: figures.splits, "rows": figures.rows, "bytes": figures.bytes}
    return {word: count for word, count in told.items() if count is not None}
