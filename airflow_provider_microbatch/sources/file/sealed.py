"""Records that a plan leaves for the next one, beside the source log.

``<folder>/<n>`` in the source's state; the highest n counts. A record counts only for the log beside which it was
written (the digest of its entry proves that) and for a source that still selects the same files: after a rewind, or
with another pattern, nobody goes by it. So nothing depends on a record: one that is lost, or cannot be written, costs a
listing and no file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.sources.file.log import NOTHING, SourceLog
from airflow_provider_microbatch.stores import Store

log = logging.getLogger(__name__)

R = TypeVar("R")


def is_due(last_ms: int, *, now_ms: int, every_ms: int) -> bool:
    """Whether a listing of all files is due that was last done then. A clock that was set back makes it due, too."""
    return not 0 <= now_ms - last_ms < every_ms


class SealedRecords(Generic[R]):
    """The records of one kind.

    :param kind: a dataclass whose fields are JSON values.
    :param folder: the folder in the source's state.
    :param source_log: the planned files.
    :param state: the source's own state.
    :param selects: the arguments of the source that decide which files it reads, as JSON values.
    """

    def __init__(
        self, kind: type[R], folder: str, source_log: SourceLog, state: Store, *, selects: Mapping[str, Any]
    ) -> None:
        self._kind = kind
        self._folder = folder
        self._log = source_log
        self._state = state
        self._selects = selects

    def read(self) -> tuple[int, R | None]:
        """The highest number, and its record if the record counts here and now."""
        number = max(numbers(self._state.list(self._folder)), default=NOTHING)
        data = None if number == NOTHING else self._state.get(f"{self._folder}/{number}")
        if data is None:
            return number, None
        try:
            found = dict(json.loads(data))
            log_id, sealed, selects = (found.pop(name) for name in ("log_id", "seal", "selects"))
            record = self._kind(**found)
            if not isinstance(log_id, int):
                raise TypeError(f"log_id is {log_id!r:.40}")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            log.warning("%s cannot be read: %r. All is listed.", self._named(number), error)
            return number, None
        seal = self._log.seal(log_id)
        counts = selects == self._selects and seal is not None and seal.hex() == sealed
        return number, record if counts else None

    def write(self, number: int, record: R, *, latest: int) -> None:
        """Leave a record, and remove those before it.

        :param number: its number, above all others.
        :param latest: the highest log id; without an entry there is nothing to write the record beside.
        """
        seal = self._log.seal(latest)
        if seal is None:
            return
        written = {**vars(record), "log_id": latest, "seal": seal.hex(), "selects": self._selects}
        try:
            self._state.put_if_absent(f"{self._folder}/{number}", json.dumps(written).encode())
            for old in numbers(self._state.list(self._folder)):
                if old < number:
                    self._state.delete(f"{self._folder}/{old}")
        except CheckpointError as error:
            log.warning("%s was not written; the next plan lists more: %s", self._named(number), error)

    def _named(self, number: int) -> str:
        return f"{self._state.location}/{self._folder}/{number}"
