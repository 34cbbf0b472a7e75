"""Notes of places that a slot is about to be moved on to: on record before it is moved, since there is no way back.

A command that takes batches back marks the checkpoint first, and then asks whether they can be read again. A process
that moves the slot on leaves a note first, and then looks at the checkpoint. However long
either sleeps, one of the two sees the other.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_microbatch.sources.jdbc.cluster import Cluster
from airflow_provider_microbatch.stores import Store

_NOTES = "letting_go"
_NAME = re.compile(r"([0-9a-f]{16})-of-([0-9]+)-[0-9a-f-]{36}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Note:
    """:param name: which no other note has.
    :param lsn: the place.
    :param cluster: whose log it is in.
    """

    name: str
    lsn: int
    cluster: Cluster

    def is_of(self, cluster: Cluster, *, written_to: int) -> bool:
        """Whether the place is one of a log. A note that its process has left behind outlives the server: it would
        refuse each batch of another one, or of one that was restored, whose places are smaller.

        :param cluster: whose log it is.
        :param written_to: its end, asked for after the notes.
        """
        is_same = None in (self.cluster.system, cluster.system) or self.cluster.system == cluster.system
        return is_same and self.lsn <= written_to


class LettingGo:
    """:param state: the source's own state."""

    def __init__(self, state: Store) -> None:
        self._state = state

    def say(self, lsn: int, cluster: Cluster) -> Note:
        """Leave a note of a place."""
        note = Note(name=f"{lsn:016x}-of-{cluster.system or 0}-{uuid.uuid4()}", lsn=lsn, cluster=cluster)
        self._state.put_if_absent(f"{_NOTES}/{note.name}", b"")
        return note

    def take_back(self, note: Note) -> None:
        """Remove a note: its writer does not move the slot on, or has, which the slot tells by itself."""
        self._state.delete(f"{_NOTES}/{note.name}")

    def notes(self) -> Sequence[Note]:
        """All notes, in no order."""
        found = map(_NAME.fullmatch, self._state.list(_NOTES))
        return [
            Note(name=one[0], lsn=int(one[1], 16), cluster=Cluster(system=int(one[2]) or None))
            for one in found
            if one is not None
        ]
