"""What is read of the newest snapshot of a branch, once for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from airflow_provider_microbatch.sinks.iceberg.look import Look

T = TypeVar("T")


class OfSnapshot(Generic[T]):
    """Reads when it is asked first, and again once the branch has another snapshot, however many batches are asked for.

    :param read: of the branch, by the id of its newest snapshot; None if it has none.
    """

    def __init__(self, read: Callable[[Look, int | None], T]) -> None:
        self._read = read
        self._found: tuple[int | None, T] | None = None

    def of(self, look: Look) -> T:
        """What there is of the branch's newest snapshot; raises as ``read``."""
        head = None if look.head is None else look.head.snapshot_id
        if self._found is None or self._found[0] != head:
            self._found = (head, self._read(look, head))
        return self._found[1]
