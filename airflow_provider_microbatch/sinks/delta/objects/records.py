"""Manifests of batches, an object each, in the order of the batches' ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import Manifest
from airflow_provider_microbatch.sinks.placed.records import Records
from airflow_provider_microbatch.stores.object_store import ObjectStore

_DIGITS = 20


@dataclass(frozen=True)
class ObjectRecords(Records):
    """:param store: the folder of the manifests."""

    store: ObjectStore

    def where(self, key: BatchKey, number: int) -> str:
        return f"{self.store.location}/{_path(key, number)}"

    def of(self, key: BatchKey) -> Iterator[tuple[int, Manifest]]:
        """The manifests of attempts at the batch that were published, or about to be, with their numbers."""
        ours = f"{key.id:0{_DIGITS}}."
        for name in self.store.list_after(f"lane={key.lane}", ours):
            if not name.startswith(ours):
                return
            number = int(name.removeprefix(ours).removesuffix(".json"), 16)
            yield number, self.get(key, number)

    def drop(self, key: BatchKey, number: int) -> None:
        self.store.delete_many([_path(key, number)])

    def ids(self, lane: str, *, after: int = -1) -> Iterator[int]:
        last = f"{after + 1:0{_DIGITS}}" if after >= 0 else ""
        known = after
        while page := self.store.list_after(f"lane={lane}", last):
            last = page[-1]
            for name in page:
                digits = name.partition(".")[0]
                if digits.isascii() and digits.isdecimal() and int(digits) > known:
                    known = int(digits)
                    yield known

    def lanes(self) -> list[str]:
        return sorted(name.removeprefix("lane=") for name in self.store.folders("") if name.startswith("lane="))

    def _write(self, key: BatchKey, number: int, data: bytes) -> None:
        path = _path(key, number)
        if not self.store.put_if_absent(path, data) and self.store.get(path) != data:
            raise SinkError(f"{self.where(key, number)} is not what it was: somebody changed it. Bring it back.")

    def _read(self, key: BatchKey, number: int) -> bytes:
        data = self.store.get(_path(key, number))
        if data is None:
            raise FileNotFoundError(_path(key, number))
        return data


def _path(key: BatchKey, number: int) -> str:
    return f"lane={key.lane}/{key.id:0{_DIGITS}}.{number:016x}.json"
