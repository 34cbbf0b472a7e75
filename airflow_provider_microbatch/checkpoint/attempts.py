"""Attempts at running a batch: the task run and the engine handle of each, and how it ended."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from airflow_provider_microbatch.checkpoint.entries import Attempt, AttemptEnd
from airflow_provider_microbatch.checkpoint.epochs import Epochs
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.records import check_types, corrupt, run_from_dict, run_to_dict
from airflow_provider_microbatch.stores import Store

STATES = ("succeeded", "failed", "canceled", "superseded")
"""How an attempt can end."""

_NAME = re.compile("[0-9a-f]{64}")
_KINDS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("handle", "no object", lambda value: isinstance(value, dict)),
    ("code", "no object", lambda value: isinstance(value, dict)),
    # The name of a file in the folder of definitions, never a path out of that folder.
    ("definition", "no SHA-256", lambda value: value is None or bool(_NAME.fullmatch(str(value)))),
)


class Attempts:
    """The attempts of all batches of a checkpoint. The highest epoch of a batch fences all lower ones.

    :param store: scoped to ``attempts``.
    """

    def __init__(self, store: Store) -> None:
        self.epochs = Epochs(store)

    def take_exactly(self, attempt: Attempt) -> bool:
        """Begin an attempt under exactly this epoch; False if the epoch is taken. Epoch and handle are durable on
        return."""
        return self.epochs.put(attempt.key, attempt.epoch, attempt_values(attempt))

    def get(self, key: BatchKey, epoch: int) -> Attempt | None:
        """The attempt, or None. :raises CorruptEntryError: if its entry cannot be read."""
        values = self.epochs.get(key, epoch)
        return None if values is None else _attempt(key, epoch, values, self.epochs.where(key, epoch))

    def made(self, key: BatchKey, epoch: int) -> Attempt | None:
        """The attempt that made output of this epoch; None if that attempt is not on record, or another one, which only
        fences, has its number: the output is of after the backup that was restored, and would pass for no run's.

        :raises CorruptEntryError: if the entry cannot be read.
        """
        found = self.get(key, epoch)
        return None if found is None or found.is_fence else found

    def all(self, key: BatchKey) -> list[Attempt]:
        """All attempts of the batch, oldest first."""
        found = [self.get(key, epoch) for epoch in self.epochs.all(key)]
        return [attempt for attempt in found if attempt is not None]

    def latest(self, key: BatchKey) -> Attempt | None:
        """The newest attempt, or None."""
        epoch = self.latest_epoch(key)
        return self.get(key, epoch) if epoch else None

    def latest_epoch(self, key: BatchKey) -> int:
        """The highest epoch; 0 if there is none. One listing, reads no entry."""
        return self.epochs.latest(key)

    def end(self, key: BatchKey, epoch: int, end: AttemptEnd) -> bool:
        """Record how the attempt ended; False if an end is on record already."""
        return self.epochs.end(key, epoch, asdict(end))

    def ended(self, key: BatchKey, epoch: int) -> AttemptEnd | None:
        """How the attempt ended; None as long as no end is on record."""
        values = self.epochs.ended(key, epoch)
        if values is None:
            return None
        where = f"{self.epochs.where(key, epoch)}.end"
        check_types(AttemptEnd, values, where=where)
        try:
            end = AttemptEnd(
                state=values["state"], error=values["error"], ended_ms=values["ended_ms"], cause=values.get("cause")
            )
        except KeyError as error:
            corrupt(where, f"not what it should be: {error} is missing")
        if end.state not in STATES:
            corrupt(where, f"not what it should be: its state is {end.state!r:.40}")
        return end

    def purge(self, before: BatchKey) -> int:
        """Remove the attempts of all batches of the lane before ``before``; return how many were removed."""
        return self.epochs.purge(before)


def attempt_values(attempt: Attempt) -> dict[str, Any]:
    """The values of the attempt's entry. Batch and epoch are not among them: the entry's path has them."""
    return {
        "handle": dict(attempt.handle),
        "run": run_to_dict(attempt.run),
        "code": dict(attempt.code),
        "started_ms": attempt.started_ms,
        "definition": attempt.definition,
        "request": attempt.request,
        "identity": None if attempt.identity is None else attempt.identity.to_dict(),
    }


def _attempt(key: BatchKey, epoch: int, values: dict[str, Any], where: str) -> Attempt:
    for name, kind, is_kind in _KINDS:
        if name in values and not is_kind(values[name]):
            corrupt(where, f"not what it should be: its {name} is {kind}")
    check_types(Attempt, values, where=where)
    told = values.get("identity")
    try:
        return Attempt(
            key=key,
            epoch=epoch,
            handle=values["handle"],
            run=run_from_dict(values["run"], where=where),
            code=values["code"],
            started_ms=values["started_ms"],
            definition=values.get("definition"),
            request=values.get("request"),
            identity=None if told is None else BatchIdentity.from_dict(told),
        )
    except KeyError as error:
        corrupt(where, f"not what it should be: {error} is missing")
    except ValueError as error:
        corrupt(where, f"not what it should be: {error}")
