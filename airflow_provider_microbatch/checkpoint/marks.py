"""Marks: observations of Airflow about a task, written down by processes that may do no more than that."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import asdict, dataclass, fields

from airflow_provider_microbatch.checkpoint.entries import Attempt, RunIdentity
from airflow_provider_microbatch.checkpoint.records import decode_record, encode_record, to_bytes, to_json
from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.stores import Store


@dataclass(frozen=True, kw_only=True)
class Mark:
    """An event of a task, or of a whole run, as Airflow saw it. A mark is a hint for the end of an attempt that no
    process ended: it gives the reason, and never decides whether the attempt is dead.

    :param dag_id: the DAG.
    :param run_id: the DAG run.
    :param task_id: the task; None for an event of the whole run.
    :param map_index: index of a mapped task, -1 if it is not mapped.
    :param ti_id: Airflow's id of the try; None if Airflow changed the id before any process was told.
    :param try_number: the try; None for a whole run.
    :param status: ``failed``, or ``canceled`` if a user wanted the end.
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

    @classmethod
    def of_stop(cls, run: RunIdentity, *, reason: str, marked_ms: int) -> Mark:
        """The mark of a try that was told to stop."""
        return cls(
            dag_id=run.dag_id,
            run_id=run.run_id,
            task_id=run.task_id,
            map_index=run.map_index,
            ti_id=run.ti_id,
            try_number=run.try_number,
            status="canceled",
            reason=reason,
            marked_ms=marked_ms,
        )

    def concerns(self, attempt: Attempt) -> bool:
        """Whether the mark is about the task that made the attempt."""
        run = attempt.run
        if run is None or (self.dag_id, self.run_id) != (run.dag_id, run.run_id):
            return False
        if self.task_id is None:
            # A cleared run keeps its id: an event from before the clear does not concern later attempts.
            return self.marked_ms >= attempt.started_ms
        # A mapped task instance that runs a table of a job is on record without its index.
        if self.task_id != run.task_id or run.map_index not in (self.map_index, -1):
            return False
        return self.ti_id == run.ti_id if self.ti_id is not None else self.try_number == run.try_number


_STATUSES = ("failed", "canceled")
_FIELDS = {field.name for field in fields(Mark)}


class Marks:
    """Files named by the SHA-256 of their content without the time: one mark, written twice, is one file.

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
        """All marks by name, oldest first. A mark that cannot be read is left out."""
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
        """The mark that tells how the attempt ended, or None. A mark of its task comes before one of the whole run."""
        found = (mark for mark in self.all().values() if mark.concerns(attempt))
        return min(found, key=lambda mark: mark.task_id is None, default=None)

    def age_seconds(self, name: str) -> float:
        """Seconds since the mark was written, by the store's clock; 0 if the mark is gone."""
        written = self._store.modified_ms(name)
        return 0.0 if written is None else (self._store.now_ms() - written) / 1000

    def forget(self, name: str) -> bool:
        """Remove the mark; False if it was gone."""
        return self._store.delete(name)
