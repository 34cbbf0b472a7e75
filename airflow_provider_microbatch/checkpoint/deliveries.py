"""Deliveries: which job status hook was told what of an attempt."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.checkpoint.records import encode_record
from airflow_provider_microbatch.checkpoint.store import Store


class Deliveries:
    """Files ``<lane>/<id>/<epoch>/<index>.<status>``, append-only; ``index`` is the hook's place in the pipeline.

    :param store: scoped to ``hooks``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def record(self, key: BatchKey, epoch: int, index: int, status: str) -> bool:
        """Write down that the hook was told; False if that is on record already."""
        return self._store.put_if_absent(f"{_folder(key, epoch)}/{index}.{status}", encode_record({}))

    def all(self, key: BatchKey, epoch: int) -> set[tuple[int, str]]:
        """Index and status of every delivery of the attempt. One listing."""
        split = [name.partition(".") for name in self._store.list(_folder(key, epoch))]
        return {(int(index), status) for index, _, status in split if index.isdecimal()}

    def purge(self, before: BatchKey) -> int:
        """Remove those of lower ids of that lane; returns how many."""
        removed = 0
        for number in numbers(self._store.list(before.lane)):
            if number < before.id:
                batch = f"{before.lane}/{number}"
                for epoch in self._store.list(batch):
                    for name in self._store.list(f"{batch}/{epoch}"):
                        removed += self._store.delete(f"{batch}/{epoch}/{name}")
                    self._store.delete(f"{batch}/{epoch}")
                self._store.delete(batch)
        return removed


def _folder(key: BatchKey, epoch: int) -> str:
    return f"{key.lane}/{key.id}/{epoch}"
