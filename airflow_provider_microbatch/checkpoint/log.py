"""A log of numbered entries: the interface of Spark's ``MetadataLog``, over any store and any codec.

A log that is a million entries long must not be listed to find its end. So every 32nd append leaves a hint beside the
log, an empty file whose name is the number. A hint is nothing but a place to begin: the entry must be there, and the
numbers after it are tried one by one. Where that does not end as it should (no hint, an entry that is gone, a gap, a
longer way than our own appends leave), the log is listed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from airflow_provider_microbatch.checkpoint.store import Store
from airflow_provider_microbatch.exceptions import CheckpointError

log = logging.getLogger(__name__)

HINT_EVERY = 32
"""One append in so many leaves a hint. Each costs a second append; fewer make the way from the hint to the end long."""

E = TypeVar("E")


class Decode(Protocol[E]):  # type: ignore[misc]  # E is only returned, and MetadataLog needs it invariant
    """Reads an entry; ``where`` is its address, for the message of an error."""

    def __call__(self, data: bytes, *, where: str) -> E: ...


class MetadataLog(Generic[E]):
    """Entry N is the file N. It is written once and never changed.

    :param store: where the files lie, scoped to the log's folder.
    :param encode: entry to bytes.
    :param decode: bytes to entry.
    :param hints: where hints lie, scoped to a folder of their own; None for a log that is always listed.
    """

    def __init__(
        self, store: Store, *, encode: Callable[[E], bytes], decode: Decode[E], hints: Store | None = None
    ) -> None:
        self._store = store
        self._hints = hints
        self._known: int | None = None
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
        if not self._store.put_if_absent(str(batch_id), self._encode(entry)):
            return False
        if batch_id % HINT_EVERY == 0 and batch_id > 0:
            self._leave_hint(batch_id)
        return True

    def get(self, batch_id: int) -> E | None:
        """Entry ``batch_id``, or None.

        :raises CorruptEntryError: if there is one that cannot be read.
        """
        data = self._store.get(str(batch_id))
        return None if data is None else self._decode(data, where=self.where(batch_id))

    def ids(self) -> list[int]:
        """The numbers of all entries, ascending. One listing, reads no entry."""
        return sorted(numbers(self._store.list("")))

    def has(self, batch_id: int) -> bool:
        """Whether there is an entry ``batch_id``. Reads no entry."""
        return self._store.modified_ms(str(batch_id)) is not None

    def latest_id(self) -> int | None:
        """The highest number, or None. Reads no entry, and lists the log only where no hint leads to its end."""
        newest = self._latest_by_hint()
        if newest is None:
            newest = max(numbers(self._store.list("")), default=None)
        if self._hints is not None:
            self._known = newest
        return newest

    def _latest_by_hint(self) -> int | None:
        if self._hints is None:
            return None
        begin = self._known
        if begin is None:
            begin = max(numbers(self._hints.list("")), default=None)
        if begin is None or not self.has(begin):
            return None
        for number in range(begin, begin + 2 * HINT_EVERY):
            if not self.has(number + 1):
                # One entry that is lost is not the end.
                return None if self.has(number + 2) else number
        return None

    def _leave_hint(self, batch_id: int) -> None:
        """Say that the log reaches ``batch_id``. The append is done, so nothing that fails here may fail it."""
        if self._hints is None:
            return
        try:
            self._hints.put_if_absent(str(batch_id), b"")
            for old in numbers(self._hints.list("")):
                # One that is ahead, of a log that was restored from a backup, would be in the way until then.
                if old != batch_id:
                    self._hints.delete(str(old))
        except CheckpointError as error:
            log.warning("no hint was left at %s, so the log will be listed: %s", self.where(batch_id), error)

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
