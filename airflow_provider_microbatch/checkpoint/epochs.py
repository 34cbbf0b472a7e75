"""Numbered entries of a batch, each with at most one end: the shape that attempts and replays share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey, is_lane
from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.checkpoint.records import decode_record, encode_record
from airflow_provider_microbatch.stores import Store

_END = ".end"


class Epochs:
    """Files ``<lane>/<id>/<epoch>`` and ``<epoch>.end``, append-only, each written by put-if-absent.

    :param store: scoped to the folder of the kind.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, key: BatchKey, epoch: int, values: Mapping[str, Any]) -> bool:
        """Write the entry of exactly this epoch; False if the epoch is taken."""
        return self._store.put_if_absent(self._path(key, epoch), encode_record(values))

    def get(self, key: BatchKey, epoch: int) -> dict[str, Any] | None:
        """The entry, or None. :raises CorruptEntryError: if it cannot be read."""
        return self._read(self._path(key, epoch))

    def all(self, key: BatchKey) -> list[int]:
        """Epochs of the batch, ascending. One listing."""
        return sorted(numbers(self._store.list(self._folder(key))))

    def latest(self, key: BatchKey) -> int:
        """The highest epoch; 0 if there is none. One listing."""
        return max(numbers(self._store.list(self._folder(key))), default=0)

    def end(self, key: BatchKey, epoch: int, values: Mapping[str, Any]) -> bool:
        """Write how the entry ended; False if an end is on record already."""
        return self._store.put_if_absent(f"{self._path(key, epoch)}{_END}", encode_record(values))

    def ended(self, key: BatchKey, epoch: int) -> dict[str, Any] | None:
        """How the entry ended, or None."""
        return self._read(f"{self._path(key, epoch)}{_END}")

    def all_and_ends(self, key: BatchKey) -> tuple[list[int], list[int]]:
        """The results of :meth:`all` and :meth:`ends` at one moment. One listing."""
        names = self._store.list(self._folder(key))
        return sorted(numbers(names)), sorted(_ends(names))

    def ends(self, key: BatchKey) -> list[int]:
        """Epochs that have an end on record, ascending. One listing."""
        return sorted(_ends(self._store.list(self._folder(key))))

    def open(self, key: BatchKey) -> list[int]:
        """Epochs that have no end on record, ascending. One listing."""
        entries, ends = self.all_and_ends(key)
        return sorted(set(entries).difference(ends))

    def age_seconds(self, key: BatchKey) -> float:
        """Seconds since the batch's newest epoch, or its end, was written, by the store's clock; infinite if none
        was."""
        newest = self._path(key, self.latest(key))
        written = [self._store.modified_ms(path) for path in (newest, f"{newest}{_END}")]
        last = max((one for one in written if one is not None), default=None)
        return math.inf if last is None else (self._store.now_ms() - last) / 1000

    def lanes(self) -> list[str]:
        """Lanes that have entries. A folder without a lane's name is none of this package's."""
        return sorted(filter(is_lane, self._store.folders("")))

    def ids(self, lane: str) -> list[int]:
        """Batches of the lane that have entries, ascending."""
        return sorted(numbers(self._store.list(lane)))

    def purge(self, before: BatchKey) -> int:
        """Remove entries and ends of the lane's batches before ``before``; return how many entries went, without
        ends."""
        removed = 0
        for number in self.ids(before.lane):
            if number < before.id:
                folder = self._folder(BatchKey(before.lane, number))
                for name in self._store.list(folder):
                    if not numbers([name.removesuffix(_END)]):
                        continue  # no file of this package's, so its owner is unknown
                    removed += self._store.delete(f"{folder}/{name}") and not name.endswith(_END)
                self._store.delete(folder)
        return removed

    def where(self, key: BatchKey, epoch: int) -> str:
        """Address of an entry, for messages."""
        return f"{self._store.location}/{self._path(key, epoch)}"

    def _read(self, path: str) -> dict[str, Any] | None:
        data = self._store.get(path)
        return None if data is None else decode_record(data, where=f"{self._store.location}/{path}")

    @staticmethod
    def _folder(key: BatchKey) -> str:
        return f"{key.lane}/{key.id}"

    def _path(self, key: BatchKey, epoch: int) -> str:
        return f"{self._folder(key)}/{epoch}"


def _ends(names: list[str]) -> list[int]:
    return numbers([name.removesuffix(_END) for name in names if name.endswith(_END)])
