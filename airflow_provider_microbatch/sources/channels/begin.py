"""The beginning of the first batch in each channel: on record before its plan, so that a replay begins there too."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.sources.channels.graph import Position, parse, render
from airflow_provider_microbatch.stores import Store

_ENTRY = "begin"


class Beginning:
    """:param state: the source's own state."""

    def __init__(self, state: Store) -> None:
        self._state = state

    def get(self) -> Offset | None:
        """The text of the position; None if none is on record yet. Writes nothing.

        :raises CorruptEntryError: if the record is torn.
        """
        data = self._state.get(_ENTRY)
        if data is None:
            return None
        text = data.decode("utf-8", errors="replace")
        return render(parse(text, where=f"{self._state.location}/{_ENTRY}"))

    def pin(self, position: Position) -> Offset:
        """Put the position on record unless one is; return the recorded one. Simultaneous planners begin at one
        place."""
        self._state.put_if_absent(_ENTRY, render(position).encode())
        found = self.get()
        assert found is not None, "it was put there, and nobody removes it"
        return found
