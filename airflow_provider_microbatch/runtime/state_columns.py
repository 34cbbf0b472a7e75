"""Tells whether what a transform keeps in a store of state is of the types of what is there, as Spark tells it.

Spark writes the columns of a store down once, with their names and what else is known of them, such as the delay of a
watermark. Rows of state are read by the places of their columns. So Spark compares nothing but types, and a transform
whose columns have other names, or another delay, goes on from what is there.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

_VERSION = "v2"
_COLLATIONS = "__COLLATIONS"
"""Where a column's metadata have a part of its type."""


def are_kept_alike(mine: bytes, there: bytes) -> bool:
    """Whether Spark goes on, with columns of one file, from a store that has those of the other.

    :param mine: a file with the columns of a store, of the transform that is to go on.
    :param there: the file that Spark finds. Files in another form than that of a store with one family of columns are
        alike if they are the same.
    """
    if mine == there:
        return True
    try:
        pairs = zip(_columns_in(mine), _columns_in(there), strict=True)
        return all(_goes_into(new, old) for new, old in pairs)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error):
        return False


def _columns_in(content: bytes) -> list[Any]:
    """The types of key and value, as JSON has them.

    :raises ValueError: if the file is of another form; :class:`struct.error` too.
    """
    version, at = _text(content, 0)
    if version != _VERSION:
        raise ValueError(f"it is of version {version!r:.100}")
    found = []
    for _ in ("key", "value"):
        (parts,) = struct.unpack_from(">i", content, at)
        at, text = at + 4, ""
        for _ in range(parts):
            part, at = _text(content, at)
            text += part
        found.append(json.loads(text))
    if at != len(content):
        raise ValueError("it goes on behind the value")
    return found


def _text(content: bytes, at: int) -> tuple[str, int]:
    """A text that has its length before it, and where it ends."""
    (length,) = struct.unpack_from(">H", content, at)
    end = at + 2 + length
    return content[at + 2 : end].decode("utf-8"), end


def _goes_into(new: Any, old: Any) -> bool:
    """Whether values of one type are read as those of the other. What may be null goes into nothing that may not."""
    kinds = [one["type"] if isinstance(one, Mapping) else None for one in (new, old)]
    if kinds == ["struct", "struct"]:
        pairs = zip(new["fields"], old["fields"], strict=True)
        return all(
            _may_be_null(a, b, "nullable") and _collations(a) == _collations(b) and _goes_into(a["type"], b["type"])
            for a, b in pairs
        )
    if kinds == ["array", "array"]:
        return _may_be_null(new, old, "containsNull") and _goes_into(new["elementType"], old["elementType"])
    if kinds == ["map", "map"]:
        parts = all(_goes_into(new[part], old[part]) for part in ("keyType", "valueType"))
        return _may_be_null(new, old, "valueContainsNull") and parts
    return bool(new == old)


def _may_be_null(new: Mapping[str, Any], old: Mapping[str, Any], name: str) -> bool:
    return bool(old[name] or not new[name])


def _collations(field: Mapping[str, Any]) -> dict[str, str]:
    """By the place in the field, which has the field's name first, how its texts are compared."""
    found = field["metadata"].get(_COLLATIONS, {})
    return {place.removeprefix(field["name"]): collation for place, collation in found.items()}
