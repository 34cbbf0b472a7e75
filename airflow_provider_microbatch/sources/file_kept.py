"""Entries of the source log that ``clean_source`` leaves alone: those of batches that were set aside.

``kept/<log id>`` in the source's state says that an entry's files stay where they are, ``released/<log id>`` that the
next commit may clean them after all.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.checkpoint.store import Store

_MARK = b"v1"


class KeptEntries:
    """:param state: the source's own state."""

    def __init__(self, state: Store) -> None:
        self._state = state

    def keep(self, entries: Iterable[int]) -> None:
        """Leave the files of these entries where they are. Durable on return."""
        for number in entries:
            self._state.put_if_absent(f"kept/{number}", _MARK)

    def release(self, entries: Iterable[int]) -> None:
        """The files of these entries may be cleaned, where they were kept. Durable on return."""
        for number in entries:
            if self._state.get(f"kept/{number}") is not None:
                self._state.put_if_absent(f"released/{number}", _MARK)

    def holds(self, number: int) -> bool:
        """Whether the entry's files must stay."""
        return self._state.get(f"kept/{number}") is not None and self._state.get(f"released/{number}") is None

    def released(self) -> list[int]:
        """Entries that were kept and may be cleaned now, ascending. One listing."""
        return sorted(numbers(self._state.list("released")))

    def forget(self, number: int) -> None:
        """The entry's files are cleaned."""
        self._state.delete(f"kept/{number}")
        self._state.delete(f"released/{number}")
