"""The records that lanes have taken of the topics: no lane reads records that another lane took.

The live lane takes new records as they come; its offset log shows which. The lane of a data interval takes pieces out
of the middle, which are one entry here. One more entry holds the pieces of all lanes of intervals together for the
other lanes; this entry is changed only by compare-and-put, so that of two lanes that want the same records one is
first.

Until an interval is planned, the common entry does not exist, and the live lane writes nothing. A planner of an
interval first creates the entry, and then looks at the pieces that the live lane has in its offset log. A reader of a
live range has the range in the offset log first, and then looks for the entry. In whatever order the two meet, one of
them sees the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.kafka.cluster import Partition, Position
from airflow_provider_microbatch.sources.kafka.pieces import Pieces
from airflow_provider_microbatch.stores import Store

_ALL = "taken"
_LANES = "lanes"


@dataclass(frozen=True, kw_only=True)
class _Found:
    """:param live: the pieces that the live lane has claimed since the entry exists, or had before.
    :param intervals: the pieces of all lanes of intervals together.
    :param newest: the lane that came last, and its pieces: the next writer that changes the entry first ensures that
        these have an entry of their own.
    """

    version: str
    live: Pieces
    intervals: Pieces
    newest: tuple[str, Pieces] | None

    def to_bytes(self) -> bytes:
        newest = None if self.newest is None else {"lane": self.newest[0], "pieces": self.newest[1].to_json()}
        values = {"live": self.live.to_json(), "intervals": self.intervals.to_json(), "newest": newest}
        return json.dumps(values, separators=(",", ":")).encode()


class Taken:
    """:param state: the source's own state."""

    def __init__(self, state: Store) -> None:
        self._state = state

    def by_intervals(self) -> Pieces:
        """The pieces of all lanes of intervals together. Writes nothing."""
        found = self._find()
        return Pieces() if found is None else found.intervals

    def behind_intervals(self, position: Position) -> dict[Partition, int]:
        """Move the position past pieces of intervals' lanes that begin there: a limit counts only records to be
        read."""
        taken = self.by_intervals().of
        return {
            one: next((end for start, end in taken.get(one, ()) if start <= at < end), at)
            for one, at in position.items()
        }

    def by_live(self) -> Pieces:
        """The pieces that the live lane has claimed; empty while no interval was ever planned. Writes nothing."""
        found = self._find()
        return Pieces() if found is None else found.live

    def by_all(self) -> Pieces:
        """The pieces of all lanes of intervals, and those that the live lane has claimed. Writes nothing."""
        found = self._find()
        return Pieces() if found is None else found.intervals | found.live

    def by_lane(self, lane: str) -> Pieces | None:
        """The pieces of the lane of an interval; None if the interval has not been planned."""
        found = self._find()
        if found is not None and found.newest is not None and found.newest[0] == lane:
            return found.newest[1]
        return self._recorded(lane)

    def lanes(self) -> set[str]:
        """The lanes of intervals that have pieces. Writes nothing."""
        found = self._find()
        newest = set() if found is None or found.newest is None else {found.newest[0]}
        return newest | set(self._state.list(_LANES))

    def live_claims(self, pieces: Pieces) -> Pieces:
        """Claim pieces from the offset log for the live lane, and return those that the live lane reads: all that no
        lane of an interval has. From now on no such lane takes them. Durable on return, idempotent; writes nothing
        where no interval was ever planned."""
        while (found := self._find()) is not None:
            own = pieces - found.intervals
            if not own - found.live or self._put(replace(found, live=found.live | own)):
                return own
        return pieces

    def take(self, lane: str, wanted: Pieces, *, live: Callable[[], Pieces]) -> Pieces:
        """Take pieces for the lane of an interval, and return them: all wanted pieces that no other lane has. Durable
        on return; a repeated call returns the same pieces.

        :param live: returns the pieces that the live lane has in its offset log; called only once the common entry
            exists, which the live lane sees.
        """
        found = self._found()
        held = live()
        while True:
            before = self.by_lane(lane)
            if before is not None:
                return before
            free = wanted - found.live - held - found.intervals
            if not free:
                return free
            if found.newest is not None:
                self._record(*found.newest)
            if self._put(
                replace(found, live=found.live | held, intervals=found.intervals | free, newest=(lane, free))
            ):  # fmt: skip
                self._record(lane, free)
                return free
            found = self._found()

    def _found(self) -> _Found:
        while (found := self._find()) is None:
            nothing = _Found(version="", live=Pieces(), intervals=Pieces(), newest=None)
            self._state.put_if_absent(_ALL, nothing.to_bytes())
        return found

    def _find(self) -> _Found | None:
        entry = self._state.get_versioned(_ALL)
        if entry is None:
            return None
        where = f"{self._state.location}/{_ALL}"
        values = _values(entry.data, where=where)
        newest = values.get("newest")
        return _Found(
            version=entry.version,
            live=Pieces.from_json(values.get("live"), where=where),
            intervals=Pieces.from_json(values.get("intervals"), where=where),
            newest=None if newest is None else (newest["lane"], Pieces.from_json(newest["pieces"], where=where)),
        )

    def _put(self, found: _Found) -> bool:
        return self._state.compare_and_put(_ALL, found.to_bytes(), version=found.version) is not None

    def _record(self, lane: str, pieces: Pieces) -> None:
        self._state.put_if_absent(f"{_LANES}/{lane}", json.dumps(pieces.to_json(), separators=(",", ":")).encode())

    def _recorded(self, lane: str) -> Pieces | None:
        path = f"{_LANES}/{lane}"
        data = self._state.get(path)
        where = f"{self._state.location}/{path}"
        return None if data is None else Pieces.from_json(_values(data, where=where), where=where)


def _values(data: bytes, *, where: str) -> Any:
    try:
        values = json.loads(data)
    except ValueError as error:
        raise CorruptEntryError(f"{where} is torn: {error}. Restore it from a backup of the checkpoint.") from error
    if not isinstance(values, dict):
        raise CorruptEntryError(f"{where} holds no object. Restore it from a backup of the checkpoint.")
    return values
