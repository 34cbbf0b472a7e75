"""Marks: what Airflow saw of a task, written down by processes that may do no more than that."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import asdict, dataclass, fields

from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.records import decode_record, encode_record, to_bytes, to_json
from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.stores import Store


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What happened to a task in Airflow's eyes. A hint for the end of an attempt that nobody else ended: it gives the
    reason, and never decides whether the attempt is dead.

    :param dag_id: the DAG.
    :param run_id: the DAG run.
    :param task_id: the task; None for what happened to the run as a whole.
    :param map_index: index of a mapped task, -1 if it is not mapped.
    :param ti_id: Airflow's id of the try; None where it was changed before anybody was told.
    :param try_number: the try; None for a run as a whole.
    :param status: ``failed``, or ``canceled`` where a user wanted it.
    :param reason: what happened, for people.
    :param marked_ms: milliseconds since the epoch, UTC.
    """

    dag_id: str
    run_id: str
    task_id: str | None
    map_index: int = -1
    ti_id: str | None = None
    try_number: int | None = None
    status: str
    reason: str
    marked_ms: int

    def concerns(self, attempt: Attempt) -> bool:
        """Whether the attempt was made by the task that this is about."""
        run = attempt.run
        if run is None or (self.dag_id, self.run_id) != (run.dag_id, run.run_id):
            return False
        if self.task_id is None:
            # A cleared run has the same id: what happened to it before does not concern what it did since.
            return self.marked_ms >= attempt.started_ms
        # A mapped instance that is a table is on record without its index.
        if self.task_id != run.task_id or run.map_index not in (self.map_index, -1):
            return False
        return self.ti_id == run.ti_id if self.ti_id is not None else self.try_number == run.try_number


_STATUSES = ("failed", "canceled")
_FIELDS = {field.name for field in fields(Mark)}


class Marks:
    """Files named by the SHA-256 of what they say, but for the time: said twice, it is one mark.

    :param store: scoped to ``marks``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, mark: Mark) -> bool:
        """Write the mark; False if it is on record already."""
        values = asdict(mark)
        said = {name: value for name, value in values.items() if name != "marked_ms"}
        return self._store.put_if_absent(hashlib.sha256(to_bytes(to_json(said))).hexdigest(), encode_record(values))

    def names(self) -> list[str]:
        """All names. One listing."""
        return sorted(self._store.list(""))

    def all(self) -> dict[str, Mark]:
        """All marks by name, oldest first. A hint that cannot be read is none."""
        found = {}
        for name in self.names():
            data = self._store.get(name)
            with suppress(CorruptEntryError, TypeError):
                values = decode_record(data or b"", where=f"{self._store.location}/{name}")
                mark = Mark(**{key: value for key, value in values.items() if key in _FIELDS})
                if mark.status in _STATUSES and isinstance(mark.reason, str) and isinstance(mark.marked_ms, int):
                    found[name] = mark
        return dict(sorted(found.items(), key=lambda item: (item[1].marked_ms, item[0])))

    def of(self, attempt: Attempt) -> Mark | None:
        """The mark that tells how the attempt ended, if any does: what Airflow saw of its task comes before what it saw
        of the run."""
        found = (mark for mark in self.all().values() if mark.concerns(attempt))
        return min(found, key=lambda mark: mark.task_id is None, default=None)

    def age_seconds(self, name: str) -> float:
        """How long ago the mark was written, by the store's clock; 0 if it is gone."""
        written = self._store.modified_ms(name)
        return 0.0 if written is None else (self._store.now_ms() - written) / 1000

    def forget(self, name: str) -> bool:
        """Remove the mark; False if it was gone."""
        return self._store.delete(name)
