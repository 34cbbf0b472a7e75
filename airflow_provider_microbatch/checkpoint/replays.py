"""Replays: requests to run a committed batch again, and the attempts that answered them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.checkpoint.entries import Attempt, Relation, RunIdentity
from airflow_provider_microbatch.checkpoint.epochs import Epochs
from airflow_provider_microbatch.checkpoint.key import BatchKey, is_whole
from airflow_provider_microbatch.checkpoint.records import (
    check_progress,
    check_types,
    corrupt,
    run_from_dict,
    run_to_dict,
)
from airflow_provider_microbatch.stores import Store

_WITHDRAWN = "withdrawn"
_REFUSED = "refused"
_NO_ATTEMPT = 0
"""In the end that an older version's repair has put in the place of a torn request's: nothing was published for it."""


def _is_of_later_clear(other: Replay, one: Replay) -> bool:
    """Whether ``other``, made before ``one``, comes from a later clear of the task that made ``one``."""
    if one.run is None or other.run is None or other.epoch > one.epoch:
        return False
    return other.run.relation_to(one.run) is Relation.LATER


def withdrawn(reason: str) -> Mapping[str, Any]:
    """The end of a request that counts as never made."""
    return {_WITHDRAWN: reason}


def refused(reason: str) -> Mapping[str, Any]:
    """The end of a request that nothing can answer; see :meth:`Replays.refuse`."""
    return {**withdrawn(reason), _REFUSED: True}


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A request to run a batch again from its recorded offsets.

    :param key: the batch.
    :param epoch: number of the request, from 1 on; no attempt's epoch.
    :param run: the task run that asked; None outside of Airflow.
    :param requested_ms: milliseconds since the epoch, UTC.
    :param code_hash: hash of the code that the asking run had; None if unknown, and in requests of older versions.
    """

    key: BatchKey
    epoch: int
    run: RunIdentity | None
    requested_ms: int
    code_hash: str | None = None


class Replays:
    """The replays of all batches of a checkpoint.

    :param store: scoped to ``replays``.
    """

    def __init__(self, store: Store) -> None:
        self.epochs = Epochs(store)

    def request(
        self, key: BatchKey, *, run: RunIdentity | None, requested_ms: int, code_hash: str | None = None
    ) -> Replay:
        """Ask for the batch again. Durable on return. Two tries of one clear ask once: the request of the slower one
        would have no answer if the other is done and its own process dies.

        :return: the request that is on record for the run and its clear, made now or by another try.
        """
        values = {"run": run_to_dict(run), "requested_ms": requested_ms, "code_hash": code_hash}
        while True:
            epoch = self.epochs.latest(key) + 1
            # After the number: a request that comes later takes it.
            for one in self.all(key) if run is not None else ():
                if one.run is not None and run is not None and run.relation_to(one.run) is Relation.SAME:
                    return one
            if self.epochs.put(key, epoch, values):
                return Replay(key=key, epoch=epoch, run=run, requested_ms=requested_ms, code_hash=code_hash)

    def complete(
        self,
        key: BatchKey,
        epoch: int,
        *,
        attempt: int,
        completed_ms: int,
        progress: Mapping[str, Any] | None = None,
    ) -> bool:
        """Record that the request was answered; False if that is on record already.

        :param attempt: epoch of the attempt whose output is now in the sink.
        :param progress: the runtime's result, as in the commit entry.
        """
        values = {"attempt": attempt, "completed_ms": completed_ms, "progress": dict(progress or {})}
        return self.epochs.end(key, epoch, values)

    def complete_rest(self, attempt: Attempt) -> None:
        """Answer all requests that the attempt was made for, if it has answered one: the process that gave the answers
        may have died between two of them."""
        answers = (self.completed(attempt.key, epoch) for epoch in self.epochs.ends(attempt.key))
        given = next((answer for answer in answers if answer and answer["attempt"] == attempt.epoch), None)
        if given is None:
            return
        for request in self.pending(attempt.key):
            if request.epoch <= (attempt.request or 0):
                self.epochs.end(attempt.key, request.epoch, given)

    def withdraw(self, key: BatchKey, epoch: int, *, reason: str) -> None:
        """Record that the request is not to be answered. It counts as never made."""
        self._end(key, epoch, withdrawn(reason))

    def refuse(self, key: BatchKey, epoch: int, *, reason: str) -> None:
        """Withdraw the request, since nothing can answer it. A retry of its run may ask again: it must not pass for
        done."""
        self._end(key, epoch, refused(reason))

    def is_refused(self, key: BatchKey, epoch: int) -> bool:
        """Whether the request was withdrawn by :meth:`refuse`."""
        return (self.epochs.ended(key, epoch) or {}).get(_REFUSED) is True

    def _end(self, key: BatchKey, epoch: int, end: Mapping[str, Any]) -> None:
        for other in self.behind(key, epoch):
            self.epochs.end(key, other.epoch, end)
        self.epochs.end(key, epoch, end)

    def behind(self, key: BatchKey, epoch: int) -> list[Replay]:
        """Requests without an answer that :meth:`pending` passes over as long as this request counts. A caller that
        withdraws this request withdraws them first: nothing else would end them, and runs would wait for them again."""
        entries, ended = self.epochs.all_and_ends(key)
        later = [number for number in entries if number > epoch and number not in ended]
        request = self.get(key, epoch) if later else None
        asked = [] if request is None else self._asked(key, later, ended)
        return [one for one in asked if request is not None and _is_of_later_clear(request, one)]

    def completed(self, key: BatchKey, epoch: int) -> Mapping[str, Any] | None:
        """``attempt``, ``completed_ms`` and (not in answers of older versions) ``progress`` of the answer, or None."""
        end = self.epochs.ended(key, epoch)
        if end is None or _WITHDRAWN in end or end.get("attempt") == _NO_ATTEMPT:
            return None
        where, progress = f"{self.epochs.where(key, epoch)}.end", end.get("progress", {})
        if not all(map(is_whole, (end.get("attempt"), end.get("completed_ms")))) or not isinstance(progress, dict):
            corrupt(where, "not what it should be: no answer to a request")
        check_progress(progress, where=where)
        return end

    def is_answered(self, key: BatchKey) -> bool:
        """Whether any request for the batch was answered."""
        return bool(self.answers(key))

    def newest_answer(self, key: BatchKey) -> Mapping[str, Any] | None:
        """The answer whose attempt's output the sink has; None if the batch was never replayed. One listing."""
        return max(self.answers(key), key=lambda answer: answer["attempt"], default=None)

    def answers(self, key: BatchKey) -> list[Mapping[str, Any]]:
        """All answers to requests for the batch, as :meth:`completed` has them, oldest request first. One listing."""
        return [answer for epoch in self.epochs.ends(key) if (answer := self.completed(key, epoch)) is not None]

    def get(self, key: BatchKey, epoch: int) -> Replay | None:
        """The request, or None."""
        values = self.epochs.get(key, epoch)
        if values is None:
            return None
        where = self.epochs.where(key, epoch)
        check_types(Replay, values, where=where)
        try:
            run = run_from_dict(values["run"], where=where)
            return Replay(
                key=key, epoch=epoch, run=run, requested_ms=values["requested_ms"], code_hash=values.get("code_hash")
            )
        except KeyError as error:
            corrupt(where, f"not what it should be: {error} is missing")

    def all(self, key: BatchKey) -> list[Replay]:
        """All requests for the batch that were not withdrawn, oldest first. One listing."""
        return self._asked(key, *self.epochs.all_and_ends(key))

    def pending(self, key: BatchKey) -> list[Replay]:
        """Requests without an answer, oldest first. One run of the batch answers all of them. One listing.

        A try that slept through a later clear of its own task may make its request behind the later clear's, and die:
        nothing answers for a try that is over, and the user wants the code of the later clear.
        """
        entries, ended = self.epochs.all_and_ends(key)
        if set(entries).issubset(ended):
            return []
        asked = self._asked(key, entries, ended)
        waiting = [one for one in asked if one.epoch not in ended]
        return [one for one in waiting if not any(_is_of_later_clear(other, one) for other in asked)]

    def _asked(self, key: BatchKey, entries: Sequence[int], ended: Sequence[int]) -> list[Replay]:
        kept = [number for number in entries if number not in ended or self.completed(key, number)]
        found = [self.get(key, epoch) for epoch in kept]
        return [replay for replay in found if replay is not None]

    def purge(self, before: BatchKey) -> int:
        """Remove the requests of all batches of the lane before ``before``; return how many were removed."""
        return self.epochs.purge(before)
