"""Deliveries: the statuses of an attempt that its job status hooks were told, or could not be told."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.checkpoint.records import decode_record, encode_record
from airflow_provider_microbatch.stores import Store

_TRY, _GIVEN_UP = ".try-", ".given-up"
_NAME = re.compile(r"\d+\.[a-z_]+(\.try-\d+|\.given-up)?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class GivenUp:
    """A job status hook that could not be told how an attempt ended, however often it was called.

    :param where: address of the record.
    :param key: the batch.
    :param epoch: the attempt.
    :param status: the status that the hook was to be told.
    :param hook: the hook's class.
    :param tries: how often the hook was called.
    :param error: the error of the last call.
    """

    where: str
    key: BatchKey
    epoch: int
    status: str
    hook: str
    tries: int
    error: str

    def __str__(self) -> str:
        return (
            f"batch {self.key} attempt {self.epoch}: {self.hook} was not told that it is {self.status}, and was given "
            f"up after {self.tries} tries. The last error: {self.error}"
        )


class Deliveries:
    """Files ``<lane>/<id>/<epoch>/<index>.<status>``, append-only; ``index`` is the hook's place in the pipeline.
    Beside them lie ``<index>.<status>.try-<n>`` for each failed call of the hook, and ``<index>.<status>.given-up``
    after the last.

    :param store: scoped to ``hooks``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def record(self, key: BatchKey, epoch: int, index: int, status: str) -> bool:
        """Record that the hook was told; False if that is on record already."""
        return self._store.put_if_absent(f"{_folder(key, epoch)}/{index}.{status}", encode_record({}))

    def all(self, key: BatchKey, epoch: int) -> set[tuple[int, str]]:
        """Index and status of every delivery of the attempt. One listing."""
        split = [name.split(".") for name in self._store.list(_folder(key, epoch))]
        return {(int(parts[0]), parts[1]) for parts in split if len(parts) == 2 and parts[0].isdecimal()}

    def tries(self, key: BatchKey, epoch: int, delivery: str) -> tuple[int, float]:
        """How often the delivery has failed, and how many seconds ago it last failed, by the store's clock; 0 and 0 if
        never.

        :param delivery: ``<index>.<status>``.
        """
        folder, before = _folder(key, epoch), f"{delivery}{_TRY}"
        names = [name for name in self._store.list(folder) if name.startswith(before)]
        count = max(numbers([name.removeprefix(before) for name in names]), default=0)
        written = self._store.modified_ms(f"{folder}/{before}{count}") if count else None
        return count, 0.0 if written is None else max(0.0, (self._store.now_ms() - written) / 1000)

    def failed(self, key: BatchKey, epoch: int, delivery: str, *, number: int, error: str) -> None:
        """Record that the delivery has failed for the ``number``-th time."""
        path = f"{_folder(key, epoch)}/{delivery}{_TRY}{number}"
        self._store.put_if_absent(path, encode_record({"error": error}))

    def give_up(self, key: BatchKey, epoch: int, delivery: str, *, hook: str, tries: int, error: str) -> None:
        """Record that the delivery is not tried again.

        :param hook: the hook that failed, for people.
        :param error: the error of the last try.
        """
        path = f"{_folder(key, epoch)}/{delivery}{_GIVEN_UP}"
        self._store.put_if_absent(path, encode_record({"hook": hook, "tries": tries, "error": error}))

    def given_up(self, key: BatchKey) -> list[GivenUp]:
        """The batch's deliveries that were given up."""
        found = []
        for epoch in numbers(self._store.list(f"{key.lane}/{key.id}")):
            folder = _folder(key, epoch)
            for name in sorted(self._store.list(folder)):
                data = self._store.get(f"{folder}/{name}") if name.endswith(_GIVEN_UP) else None
                if data is not None:
                    where = f"{self._store.location}/{folder}/{name}"
                    values = decode_record(data, where=where)
                    found.append(
                        GivenUp(
                            where=where,
                            key=key,
                            epoch=epoch,
                            status=name.removesuffix(_GIVEN_UP).partition(".")[2],
                            hook=str(values.get("hook")),
                            tries=int(values.get("tries") or 0),
                            error=str(values.get("error")),
                        )
                    )
        return found

    def batches(self) -> list[BatchKey]:
        """Batches that have deliveries on record."""
        lanes = sorted(self._store.list(""))
        return [BatchKey(lane, number) for lane in lanes for number in numbers(self._store.list(lane))]

    def purge(self, before: BatchKey) -> int:
        """Remove the deliveries of all batches of the lane before ``before``; return how many files were removed."""
        removed = 0
        for number in numbers(self._store.list(before.lane)):
            if number < before.id:
                batch = f"{before.lane}/{number}"
                for epoch in numbers(self._store.list(batch)):
                    for name in filter(_NAME.fullmatch, self._store.list(f"{batch}/{epoch}")):
                        removed += self._store.delete(f"{batch}/{epoch}/{name}")
                    self._store.delete(f"{batch}/{epoch}")
                self._store.delete(batch)
        return removed


def _folder(key: BatchKey, epoch: int) -> str:
    return f"{key.lane}/{key.id}/{epoch}"
