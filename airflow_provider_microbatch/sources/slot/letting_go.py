"""Notes of places that a slot is about to be moved on to: on record before it is moved, since there is no way back.

A command that takes batches back marks the checkpoint first, and then asks whether they can be read again. A process
that moves the slot on leaves a note first, and then looks at the checkpoint. However long
either sleeps, one of the two sees the other.
"""

from __future__ import annotations

import uuid

from airflow_provider_microbatch.stores import Store

_NOTES = "letting_go"


class LettingGo:
    """:param state: the source's own state."""

    def __init__(self, state: Store) -> None:
        self._state = state

    def say(self, lsn: int) -> str:
        """Leave a note of a place; returns its name, which no other one has."""
        name = f"{_NOTES}/{lsn:016x}-{uuid.uuid4()}"
        self._state.put_if_absent(name, b"")
        return name

    def take_back(self, name: str) -> None:
        """Remove a note: its writer does not move the slot on."""
        self._state.delete(name)

    def forget(self, moved_to: int) -> None:
        """Remove notes of places that the slot has reached, and tells by itself."""
        for name in self._state.list(_NOTES):
            if _lsn(name) <= moved_to:
                self._state.delete(f"{_NOTES}/{name}")

    def farthest(self) -> int:
        """The farthest place that there is a note of; 0 if there is none."""
        return max(map(_lsn, self._state.list(_NOTES)), default=0)


def _lsn(name: str) -> int:
    return int(name.partition("-")[0], 16)
