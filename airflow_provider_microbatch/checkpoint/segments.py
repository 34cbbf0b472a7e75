"""Old entries of a log, a thousand in one file, so that the log's folder stays small however many batches there were.

A segment ``<first>-<last>`` is a gzip file: the line ``v1``, then for each entry a line ``[number, "its text"]``. A
segment is durable before the first of its entries goes, and wins over an entry of the same number: so a crash in
between, or a writer that slept while the log went on and then puts an old number, changes nothing that is read.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from bisect import bisect_right
from collections.abc import Mapping

from airflow_provider_microbatch.checkpoint.records import corrupt
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.stores import Store

SEGMENT_SIZE = 1_000
"""Number of entries of a segment."""

_NAME = re.compile(r"(0|[1-9][0-9]*)-(0|[1-9][0-9]*)")
_VERSION = "v1"


class Segments:
    """The segments of one log.

    :param store: scoped to their folder.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._spans: dict[int, int] | None = None
        self._firsts: list[int] = []
        self._read: tuple[int, Mapping[int, bytes]] | None = None

    def spans(self, *, fresh: bool = False) -> Mapping[int, int]:
        """First number → last number of each segment, ascending.

        :param fresh: list the segments again; otherwise the first listing is good enough.
        """
        if self._spans is None or fresh:
            matches = [_NAME.fullmatch(name) for name in self._store.list("")]
            self._spans = dict(sorted((int(match[1]), int(match[2])) for match in matches if match))
            self._firsts = list(self._spans)
        return self._spans

    def first_of(self, number: int, *, fresh: bool = False) -> int | None:
        """The first number of the segment that holds ``number``; None if none does."""
        spans = self.spans(fresh=fresh)
        firsts = self._firsts
        place = bisect_right(firsts, number) - 1
        return firsts[place] if place >= 0 and number <= spans[firsts[place]] else None

    def get(self, number: int, *, fresh: bool = False) -> bytes | None:
        """The bytes of an entry, or None.

        :raises CorruptEntryError: if its segment cannot be read.
        """
        first = self.first_of(number, fresh=fresh)
        return None if first is None else self.entries(first).get(number)

    def entries(self, first: int) -> Mapping[int, bytes]:
        """All entries of the segment that begins with ``first``; empty if it has gone."""
        if self._read is None or self._read[0] != first:
            name = self._name(first)
            data = self._store.get(name)
            self._read = (first, {} if data is None else _decode(data, where=f"{self._store.location}/{name}"))
        return self._read[1]

    def put(self, entries: Mapping[int, bytes]) -> None:
        """Write a segment; durable on return. A segment that is there already stays.

        :param entries: ascending, without a gap.
        :raises UnicodeDecodeError: if an entry is no text.
        """
        lines = [json.dumps([number, data.decode()], ensure_ascii=False) for number, data in entries.items()]
        first, last = min(entries), max(entries)
        # mtime=0: two writers of the same entries write the same bytes.
        self._store.put_if_absent(f"{first}-{last}", gzip.compress("\n".join([_VERSION, *lines]).encode(), mtime=0))
        self._spans = None

    def remove(self, first: int) -> bool:
        """Remove the segment that begins with ``first``."""
        name = self._name(first)
        self._spans = self._read = None
        return self._store.delete(name)

    def _name(self, first: int) -> str:
        return f"{first}-{self.spans()[first]}"


def _decode(data: bytes, *, where: str) -> dict[int, bytes]:
    try:
        version, *lines = gzip.decompress(data).decode().split("\n")
        if version != _VERSION:
            raise CheckpointError(f"{where} is of version {version[:40]!r}; this package reads {_VERSION}. Upgrade it.")
        return {number: text.encode() for number, text in map(json.loads, lines)}
    except (OSError, EOFError, ValueError, TypeError, zlib.error) as error:
        corrupt(where, f"damaged ({error})")
