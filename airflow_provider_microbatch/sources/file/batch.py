"""Selects the files of the next batch from the found files: the first ones in order, up to the limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from airflow_provider_microbatch.sources import ReadLimit
from airflow_provider_microbatch.sources.file.listing import FoundFile

_ROOM = 1_000


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """The order of files and the limits of a batch.

    :param files: the largest number of files; None: no limit.
    :param bytes: the largest number of bytes, but always one file; None: no limit.
    :param latest_first: newest files first; else oldest first. Files with the same time are in the order of their
        paths.
    """

    files: int | None = None
    bytes: int | None = None
    latest_first: bool = False

    def within(self, limit: ReadLimit) -> BatchLimits:
        """These limits combined with ``limit``, without its rows: a file's rows are not known before it is read."""
        return replace(self, files=_least(self.files, limit.splits), bytes=_least(self.bytes, limit.bytes))

    def cut(self, files: Iterable[FoundFile]) -> Iterator[list[FoundFile]]:
        """Yield all of the files, batch by batch; each batch has at least one file."""
        batch: list[FoundFile] = []
        size = 0
        for file in sorted(files, key=lambda found: (found.mtime_ns, found.path), reverse=self.latest_first):
            full = self.files is not None and len(batch) >= self.files
            heavy = self.bytes is not None and size + file.size > self.bytes
            if batch and (full or heavy):
                yield batch
                batch, size = [], 0
            batch.append(file)
            size += file.size
        if batch:
            yield batch


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


class NextBatch:
    """Takes files one by one and keeps those that fit into the next batch: a backlog of a million files needs only the
    memory of a batch.

    :param limits: limits of the batch.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._kept: list[FoundFile] = []
        self._room = _ROOM
        self._left: str | None = None

    @property
    def left(self) -> str | None:
        """The first path, in order, of those files that :meth:`files` leaves out; None if it leaves out none."""
        return self._left

    def add(self, file: FoundFile) -> None:
        """Offer a file that may be in the batch."""
        self._kept.append(file)
        if len(self._kept) >= self._room:
            self._cut()
            self._room = max(_ROOM, 2 * len(self._kept))

    def leave(self, path: str) -> None:
        """Note a file that is left for a later batch."""
        if self._left is None or path < self._left:
            self._left = path

    def files(self) -> list[FoundFile]:
        """The batch, in order; empty if there is no file."""
        self._cut()
        return self._kept

    def _cut(self) -> None:
        # A file that does not fit beside some of the files does not fit beside more of them either.
        batches = self._limits.cut(self._kept)
        self._kept = next(batches, [])
        for batch in batches:
            for file in batch:
                self.leave(file.path)


def total(sizes: list[int | None]) -> int | None:
    """The sum of all sizes; None if one of them is not known."""
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
