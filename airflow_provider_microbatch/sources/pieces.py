"""Pieces of a line: whole numbers from one up to another, which is excluded. Values; touch nothing."""

from __future__ import annotations

from collections.abc import Iterable

Piece = tuple[int, int]


def joined(found: Iterable[Piece]) -> tuple[Piece, ...]:
    """The numbers of pieces in any order, which may overlap: in order, not touching each other, none empty."""
    pieces: list[Piece] = []
    for start, end in sorted(found):
        if start >= end:
            continue
        if pieces and start <= pieces[-1][1]:
            pieces[-1] = (pieces[-1][0], max(end, pieces[-1][1]))
        else:
            pieces.append((start, end))
    return tuple(pieces)


def without(pieces: Iterable[Piece], taken: Iterable[Piece]) -> tuple[Piece, ...]:
    """The numbers of pieces that are in none of the others, in the form of :func:`joined`."""
    others = joined(taken)
    left: list[Piece] = []
    for start, end in joined(pieces):
        for taken_start, taken_end in others:
            if start < taken_start:
                left.append((start, min(end, taken_start)))
            start = max(start, taken_end)
            if start >= end:
                break
        left.append((start, end))
    return joined(left)


def common(pieces: Iterable[Piece], others: Iterable[Piece]) -> tuple[Piece, ...]:
    """The numbers that are in both, in the form of :func:`joined`."""
    of = joined(pieces)
    return without(of, without(of, others))
