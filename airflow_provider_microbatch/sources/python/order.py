"""Compares two offsets whose meaning only their author knows."""

from __future__ import annotations

from typing import Any


def is_after(one: Any, other: Any) -> bool | None:
    """True if no number of ``one`` is below that of ``other`` and one is above; False the other way round, and if both
    are equal. None where that decides nothing: their forms differ, their texts differ, or each has a number that is
    above the other's."""
    if one == other:
        return False
    found = _compared(one, other)
    return None if found is None or found == {-1, 1} else found == {1}


def _compared(one: Any, other: Any) -> set[int] | None:
    """The signs of the differences; None if the values cannot be compared."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return _all([(one[key], other[key]) for key in one])
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return _all(list(zip(one, other, strict=True)))
    if _is_number(one) and _is_number(other):
        return set() if one == other else {1 if one > other else -1}
    return set() if one == other else None


def _all(pairs: list[tuple[Any, Any]]) -> set[int] | None:
    signs: set[int] = set()
    for one, other in pairs:
        found = _compared(one, other)
        if found is None:
            return None
        signs |= found
    return signs


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
