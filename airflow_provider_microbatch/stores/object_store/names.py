"""Derives the names in one folder, in their own order, from the keys of a listing.

A service orders whole keys by their UTF-8 bytes, which is the order of code points. Names are not ordered like their
keys where a name is a folder: ``10/x`` comes after ``10-2``, though ``10`` is the lower name (``-`` is before ``/``).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable


def first_names(keys: Iterable[str], *, after: str, limit: int) -> list[str]:
    """Return the lowest names after ``after``, at most ``limit`` of them. Takes no more keys than needed to be certain.

    :param keys: relative to the folder, ascending, beginning at the latest with the first key behind ``after``.
    """
    found: list[str] = []
    known: set[str] = set()
    awaited = ""
    for key in keys:
        name = key.partition("/")[0]
        is_new = name > after and name not in known and not name.startswith(".")
        if is_new and (len(found) < limit or name < found[-1]):
            known.add(name)
            insort(found, name)
            del found[limit:]
            awaited = max(awaited, _last_before(name))
        if len(found) >= limit and key > awaited:
            break  # stop now, since the next key may be on the next page
    return found


def _last_before(name: str) -> str:
    """The key by which the keys of all folders have begun that come before ``name`` by name and after it by key."""
    return max((f"{name[:at]}/" for at in range(1, len(name)) if name[at] < "/"), default="")
