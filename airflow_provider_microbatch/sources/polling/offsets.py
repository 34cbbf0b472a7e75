"""Converts offsets that the user's code makes to the JSON texts of the logs and back."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider_microbatch.checkpoint.entries import Offset


def encoded(value: Any, *, who: str) -> Offset | None:
    """The text of an offset; None stays "before anything".

    :param who: the method that returned the value, for errors.
    :raises ValueError: if the value would change on its way through JSON: the planned range could not be read.
    """
    if value is None:
        return None
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{who} gave {value!r:.200}, which is no JSON value: {error}") from error
    back = json.loads(text)
    if not same(back, value):
        raise ValueError(
            f"{who} gave {value!r:.200}, which comes back from JSON as {back!r:.200}. Use numbers, texts, lists, and "
            "objects with texts as keys."
        )
    return text


def decoded(offset: Offset | None) -> Any:
    """Return the value that was passed to :func:`encoded`."""
    return None if offset is None else json.loads(offset)


def same(one: Any, other: Any) -> bool:
    """Whether both are the same values of the same types: to Python, ``1`` equals ``1.0``, ``True`` and a member of an
    enum."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
