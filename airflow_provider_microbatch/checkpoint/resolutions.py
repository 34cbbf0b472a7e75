"""Resolutions: the ends of batches that were planned without an end, and the attempts that chose them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.codec import check_read_offset
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import BatchKey, is_lane, is_whole
from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.checkpoint.records import corrupt, decode_record, encode_record
from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.stores import Store


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """The ends that an attempt has come to.

    :param epoch: epoch of the attempt.
    :param ends: by source, for the sources whose end was late.
    """

    epoch: int
    ends: Mapping[str, Offset | None]


class Resolutions:
    """Files ``<lane>/<id>/<digest of the plan>``, each written once, by put-if-absent, before anything is published:
    the next batch begins at these ends, and every later attempt reads exactly up to them. A batch that was rewound and
    planned anew has another digest, so no earlier resolution counts for it.

    :param store: scoped to ``resolved``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, key: BatchKey, digest: str) -> Resolution | None:
        """The resolution of the batch in the plan of that digest, or None.

        :raises CorruptEntryError: if the resolution cannot be read.
        """
        data = self._store.get(_path(key, digest))
        if data is None:
            return None
        where = self.where(key, digest)
        values = decode_record(data, where=where)
        epoch, ends = values.get("epoch"), values.get("ends")
        if not is_whole(epoch) or not isinstance(ends, dict):
            corrupt(where, "not what it should be: it lacks epoch or ends")
        for name, end in ends.items():
            if end is not None:
                check_read_offset(name, end, where)
        return Resolution(epoch=epoch, ends=ends)

    def choose(self, key: BatchKey, digest: str, resolution: Resolution) -> None:
        """Resolve the batch, unless an attempt has resolved it. Durable on return."""
        self._store.put_if_absent(_path(key, digest), encode_resolution(resolution))

    def unreadable(self, key: BatchKey) -> Iterator[str]:
        """Digests of the batch's plans whose resolution is there and cannot be read."""
        for digest in self._store.list(f"{key.lane}/{key.id}"):
            try:
                self.get(key, digest)
            except CorruptEntryError:
                yield digest

    def purge(self, before: BatchKey) -> None:
        """Remove the resolutions of all batches of the lane before ``before``."""
        if is_lane(before.lane):
            for number in numbers(self._store.list(before.lane)):
                if number < before.id:
                    for name in self._store.list(f"{before.lane}/{number}"):
                        self._store.delete(f"{before.lane}/{number}/{name}")
                    self._store.delete(f"{before.lane}/{number}")

    def where(self, key: BatchKey, digest: str) -> str:
        """Address of a resolution, for messages."""
        return f"{self._store.location}/{_path(key, digest)}"


def encode_resolution(resolution: Resolution) -> bytes:
    """A resolution as bytes."""
    return encode_record({"epoch": resolution.epoch, "ends": dict(resolution.ends)})


def _path(key: BatchKey, digest: str) -> str:
    return f"{key.lane}/{key.id}/{digest}"
