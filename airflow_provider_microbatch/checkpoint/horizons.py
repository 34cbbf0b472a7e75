"""Horizons: what is being removed from the old end of a lane's logs, or packed there, at this moment."""

from __future__ import annotations

import uuid

from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.stores import Store

REMOVED, PACKED = "removed", "packed"
"""What becomes of the entries below a horizon."""


class Horizons:
    """Empty files ``<lane>/<before>-<removed or packed>-<name>``: whoever takes entries below an id away says so first,
    durably, and looks then whether a command is at the checkpoint. A command marks the checkpoint first and looks here
    then: so one of the two sees the other. Whoever has said it may sleep at any moment and go on later, so its word
    holds until it takes it back, or until what is below it is gone, which does not come back. No age ends it: between
    its last look at any clock and the removal of an entry it may sleep longer than that, and empty a log that was given
    up to there. Only a person can know that it is dead, and take its word back (``microbatch repair --give-up``).

    :param store: scoped to ``microbatch/retained``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def announce(self, lane: str, before: int, doing: str) -> str:
        """Say that what is below ``before`` goes. Durable on return.

        :param doing: ``REMOVED`` or ``PACKED``.
        :return: the name, to take it back by: each has one of its own.
        """
        name = f"{before}-{doing}-{uuid.uuid4().hex}"
        self._store.put_if_absent(f"{lane}/{name}", b"")
        return name

    def highest(self, lane: str) -> int:
        """Below which id of the lane entries may go at any moment; 0 if none may."""
        return max(numbers([name.partition("-")[0] for name in self._store.list(lane)]), default=0)

    def stands(self, lane: str, name: str) -> bool:
        """Whether the word of that name holds: a person may have taken it back from who seemed dead. Asked right before
        each entry goes."""
        return self._store.modified_ms(f"{lane}/{name}") is not None

    def removing(self, lane: str) -> list[tuple[str, int]]:
        """The words by which entries of the lane are removed, each with when it was said, milliseconds since the epoch,
        by the store's clock."""
        names = [name for name in self._store.list(lane) if f"{name}--".split("-", 2)[1] == REMOVED]
        written = [(name, self._store.modified_ms(f"{lane}/{name}")) for name in sorted(names)]
        return [(name, at) for name, at in written if at is not None]

    def where(self, lane: str, name: str) -> str:
        """Address of a word, for messages."""
        return f"{self._store.location}/{lane}/{name}"

    def forget(self, lane: str, name: str) -> None:
        """Nothing goes any more by the word of that name."""
        self._store.delete(f"{lane}/{name}")

    def passed(self, lane: str, before: int, *done: str) -> None:
        """All below ``before`` is removed, or packed, for good: who has announced no more has nothing left to do,
        whether it died at it or sleeps.

        :param done: what was announced that is done with now.
        """
        for name in self._store.list(lane):
            number, doing, _ = f"{name}--".split("-", 2)
            if doing in done and any(announced <= before for announced in numbers([number])):
                self._store.delete(f"{lane}/{name}")
