"""What becomes of landed rows in worlds whose tables have all versions of a key: changes of three customers, which come
out of their order, and of which some delete. The standard library is enough: the chaos engine starts without packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEY = "customer"
COLUMNS = ("id", "version", KEY, "at", "note")
"""Of whole numbers."""
DELETE_WHEN = "id % 7 = 4"
IN_SQL = (f"id % 3 AS {KEY}", "id ^ 5 AS at", "id div 3 % 2 AS note")
"""The columns that Spark adds to ``id`` and ``version``, for changes of which no two have the same place."""


def change_of(row: Mapping[str, Any], *, at_once: int = 1) -> dict[str, Any]:
    """The change that a row with ``id`` and ``version`` becomes.

    :param at_once: so many changes of all customers have the same place in the sequence.
    """
    id = row["id"]
    change = {KEY: id % 3, "at": (id ^ 5) // at_once, "note": id // 3 % 2, "_deleted": id % 7 == 4}
    return {"id": id, "version": row["version"], **change}
