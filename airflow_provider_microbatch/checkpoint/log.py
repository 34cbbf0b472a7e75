"""A log of numbered entries: the interface of Spark's ``MetadataLog``, over any store and any codec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from airflow_provider_microbatch.checkpoint.store import Store

E = TypeVar("E")


class Decode(Protocol[E]):  # type: ignore[misc]  # E is only returned, and MetadataLog needs it invariant
    """Reads an entry; ``where`` is its address, for the message of an error."""

    def __call__(self, data: bytes, *, where: str) -> E: ...


class MetadataLog(Generic[E]):
    """Entry N is the file N. It is written once and never changed.

    :param store: where the files lie, scoped to the log's folder.
    :param encode: entry to bytes.
    :param decode: bytes to entry.
    """

    def __init__(self, store: Store, *, encode: Callable[[E], bytes], decode: Decode[E]) -> None:
        self._store = store
        self._encode = encode
        self._decode = decode

    @property
    def location(self) -> str:
        """Address of the log's folder, for messages."""
        return self._store.location

    def add(self, batch_id: int, entry: E) -> bool:
        """Write entry ``batch_id`` unless there is one; durable when this returns.

        :return: False if there was one; it is left as it is.
        """
        return self._store.put_if_absent(str(batch_id), self._encode(entry))

    def get(self, batch_id: int) -> E | None:
        """Entry ``batch_id``, or None.

        :raises CorruptEntryError: if there is one that cannot be read.
        """
        data = self._store.get(str(batch_id))
        return None if data is None else self._decode(data, where=self.where(batch_id))

    def ids(self) -> list[int]:
        """The numbers of all entries, ascending. One listing, reads no entry."""
        return sorted(numbers(self._store.list("")))

    def latest_id(self) -> int | None:
        """The highest number, or None. One listing, reads no entry."""
        return max(numbers(self._store.list("")), default=None)

    def latest(self) -> tuple[int, E] | None:
        """The newest entry with its number, or None."""
        newest = self.latest_id()
        entry = None if newest is None else self.get(newest)
        return None if newest is None or entry is None else (newest, entry)

    def range(self, start: int | None = None, end: int | None = None) -> list[tuple[int, E]]:
        """The entries from ``start`` to ``end``, both inclusive, None for open, ascending."""
        chosen = [
            number for number in self.ids() if (start is None or number >= start) and (end is None or number <= end)
        ]
        read = [(number, self.get(number)) for number in chosen]
        return [(number, entry) for number, entry in read if entry is not None]

    def purge(self, before_id: int) -> int:
        """Remove the entries below ``before_id``, oldest first, so that a crash leaves no gap.

        :return: how many were removed.
        """
        return sum(self._store.delete(str(number)) for number in self.ids() if number < before_id)

    def where(self, batch_id: int) -> str:
        """Address of an entry, for messages."""
        return f"{self._store.location}/{batch_id}"


def numbers(names: list[str]) -> list[int]:
    """The names that are numbers as a log writes them; a leading zero or another alphabet's digit is none."""
    return [int(name) for name in names if name.isascii() and name.isdecimal() and str(int(name)) == name]
