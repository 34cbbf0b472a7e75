"""How a batch is known everywhere: its lane and its number in that lane's log."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TypeGuard

from airflow_provider_microbatch.exceptions import DefinitionError

LIVE = "live"
"""The lane whose position moves with new data. Backfills have lanes of their own."""

LETTERS = "dead-letters"
"""The lane of batches that are made of dead letters of other lanes."""

OF_INTERVAL = "interval-"
"""The beginning of the name of a lane that belongs to a data interval."""

_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, milliseconds since the epoch."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_STAMP = r"([0-9]{8}T[0-9]{6}(?:\.[0-9]{3})?Z)"
_SPAN = re.compile(f"{OF_INTERVAL}{_STAMP}-{_STAMP}")


def check_name(name: object, *, what: str) -> str:
    """Return ``name`` if it can be one path component of a checkpoint and of a table.

    :param name: what the user wrote.
    :param what: what it names, for the message ("pipeline", "source", "lane").
    :raises DefinitionError: for anything but letters, digits, ``_``, ``-`` and ``.``, a leading dot, or ``..``.
    """
    if not is_name(name):
        raise DefinitionError(
            f"{what} name {name!r} cannot be used: it becomes a folder name, so use letters, digits, '_', '-' and '.' "
            "only, start with a letter or digit, and leave out slashes and '..'."
        )
    return str(name)


def is_name(name: object) -> bool:
    """Whether ``name`` can be one path component of a checkpoint and of a table."""
    return isinstance(name, str) and bool(_NAME.fullmatch(name)) and ".." not in name


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value from JSON is a whole number that an id, a count, or a moment in milliseconds can be. No calendar
    has a moment beyond the year 9999, and code that shows such a moment would fail."""
    return type(value) is int and _FIRST_MS <= value <= _LAST_MS


def is_lane(name: str) -> bool:
    """Whether a folder of this name is a lane's: ``live``, the lane of dead letters, or the lane of an interval. Other
    folders there are not this package's, such as a copy of a lane: its batches would count as read twice."""
    return name in (LIVE, LETTERS) or span_of(name) is not None


def span_of(lane: str) -> tuple[int, int] | None:
    """Start and end of the interval that the lane of this name belongs to, milliseconds since the epoch; None if the
    lane belongs to no interval. A name is ``interval-20260101T000000Z-20260102T000000Z``, or has stamps as
    ``20260101T000000.001Z``."""
    found = _SPAN.fullmatch(lane)
    try:
        return None if found is None else (_milliseconds(found[1]), _milliseconds(found[2]))
    except ValueError:
        return None  # looks like a stamp but is no moment: no lane was made of it


def _milliseconds(stamp: str) -> int:
    return round(datetime.fromisoformat(stamp).timestamp() * 1000)


@dataclass(frozen=True, order=True)
class BatchKey:
    """Lane and id of a micro-batch. Ids count from 0 in each lane.

    :param lane: ``live``, or the name of a backfill's lane.
    :param id: number of the batch in the lane's offset log.
    """

    lane: str
    id: int

    def __post_init__(self) -> None:
        check_name(self.lane, what="lane")
        if not isinstance(self.id, int) or isinstance(self.id, bool) or self.id < 0:
            raise DefinitionError(f"batch id {self.id!r} is not a number from 0 on.")

    def __str__(self) -> str:
        return f"{self.lane}/{self.id}"

    @classmethod
    def parse(cls, text: str) -> BatchKey:
        """Read what ``str(key)`` wrote."""
        lane, _, number = text.rpartition("/")
        if not number.isdecimal():
            raise DefinitionError(f"{text!r} is not a batch key; expected '<lane>/<id>', as in 'live/42'.")
        return cls(lane=lane, id=int(number))
