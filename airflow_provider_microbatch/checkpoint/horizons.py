"""Horizons: which old entries of a lane's logs are being removed, or packed into segments, at this moment."""

from __future__ import annotations

import uuid

from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.stores import Store

REMOVED, PACKED = "removed", "packed"
"""The ways in which the entries below a horizon go."""


class Horizons:
    """Empty files ``<lane>/<before>-<removed or packed>-<name>``. A process that takes entries below an id away first
    announces that id as a horizon, durably, and then looks for a command at the checkpoint. A command first marks the
    checkpoint and then looks here, so one of the two sees the other. The process may sleep at any moment and go on
    later, so its horizon holds until the process takes it back, or until the entries below it are gone, which do not
    come back. No age ends a horizon: between its last look at any clock and the removal of an entry, the process may
    sleep longer than that age, and empty a log that was rewound meanwhile. Only a person can know that the process is
    dead, and take its horizon back (``microbatch repair --give-up``).

    :param store: scoped to ``microbatch/retained``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def announce(self, lane: str, before: int, doing: str) -> str:
        """Announce that the entries below ``before`` go. Durable on return.

        :param doing: ``REMOVED`` or ``PACKED``.
        :return: the horizon's name, by which to take it back: each horizon has a name of its own.
        """
        name = f"{before}-{doing}-{uuid.uuid4().hex}"
        self._store.put_if_absent(f"{lane}/{name}", b"")
        return name

    def highest(self, lane: str) -> int:
        """The id below which entries of the lane may go at any moment; 0 if none may."""
        return max(numbers([name.partition("-")[0] for name in self._store.list(lane)]), default=0)

    def stands(self, lane: str, name: str) -> bool:
        """Whether the horizon of that name holds: a person may have taken it back from a process that seemed dead.
        Asked right before each entry goes."""
        return self._store.modified_ms(f"{lane}/{name}") is not None

    def removing(self, lane: str) -> list[tuple[str, int]]:
        """Names of the horizons by which entries of the lane are removed, each with the moment of its announcement,
        milliseconds since the epoch, by the store's clock."""
        names = [name for name in self._store.list(lane) if f"{name}--".split("-", 2)[1] == REMOVED]
        written = [(name, self._store.modified_ms(f"{lane}/{name}")) for name in sorted(names)]
        return [(name, at) for name, at in written if at is not None]

    def where(self, lane: str, name: str) -> str:
        """Address of a horizon, for messages."""
        return f"{self._store.location}/{lane}/{name}"

    def forget(self, lane: str, name: str) -> None:
        """Take back the horizon of that name: no entry goes by it any more."""
        self._store.delete(f"{lane}/{name}")

    def passed(self, lane: str, before: int, *done: str) -> None:
        """Take back the horizons up to ``before``, since all entries below that id are removed, or packed, for good: a
        process that announced no higher one has nothing left to do, whether it died or sleeps.

        :param done: the kinds of horizons that are done with: ``REMOVED``, ``PACKED`` or both.
        """
        for name in self._store.list(lane):
            number, doing, _ = f"{name}--".split("-", 2)
            if doing in done and any(announced <= before for announced in numbers([number])):
                self._store.delete(f"{lane}/{name}")
