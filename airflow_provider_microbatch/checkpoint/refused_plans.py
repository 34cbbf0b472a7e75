"""The plans that were refused: by which definition commands open the sources of the plan to come.

What makes a source refuse a plan (a table that was renamed, a database that was moved) stands in the definition of that
plan alone, which no attempt has run. Definitions are named by their content and put once, so neither the time of a
definition's file nor the order of two files tells which definition was refused last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from airflow_provider_microbatch.checkpoint.identity import is_digest
from airflow_provider_microbatch.checkpoint.key import is_lane, is_whole
from airflow_provider_microbatch.checkpoint.records import corrupt, decode_record, encode_record
from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.stores import Store


@dataclass(frozen=True, kw_only=True)
class RefusedPlan:
    """A plan that was refused, and what its lane was like at that moment: the record says nothing of the plan to come
    once that has changed.

    :param definition: name of the definition of the pipeline that planned.
    :param next: id of the batch that would have been planned.
    :param after: digest of the plan of the batch before it, the newest one; empty for the first batch.
    :param epoch: highest epoch of the batch that would have been planned: attempts of before a rewind.
    """

    definition: str
    next: int
    after: str
    epoch: int


class RefusedPlans:
    """Files ``<lane>``, one for each lane: the plan that was refused last takes the place of the one before.

    :param store: scoped to ``microbatch/refused``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, lane: str) -> RefusedPlan | None:
        """The plan of the lane that was refused last, or None. :raises CorruptEntryError: if it cannot be read."""
        data, where = self._store.get(lane), self.where(lane)
        if data is None:
            return None
        values = decode_record(data, where=where)
        definition, after = values.get("definition"), values.get("after")
        number, epoch = values.get("next"), values.get("epoch")
        # The name of the definition becomes a path.
        if not is_digest(definition) or not (is_digest(after) or (after == "" and number == 0)):
            corrupt(where, "not what it should be: it lacks the digest of a definition, or of a plan")
        if not is_whole(number) or number < 0 or not is_whole(epoch) or epoch < 0:
            corrupt(where, "not what it should be: it lacks the number of a batch, or of an attempt")
        return RefusedPlan(definition=str(definition), next=number, after=str(after), epoch=epoch)

    def put(self, lane: str, plan: RefusedPlan) -> None:
        """Record the plan in place of whatever is on record of the lane. Durable on return; writes nothing if the same
        plan is on record: a run that is refused is tried again for days."""
        data = encode_record(asdict(plan))
        while True:
            there = self._store.get_versioned(lane)
            if there is None:
                if self._store.put_if_absent(lane, data):
                    return
            elif there.data == data or self._store.compare_and_put(lane, data, version=there.version) is not None:
                return

    def unreadable(self) -> Iterator[tuple[str, CorruptEntryError]]:
        """Lanes whose record cannot be read."""
        for lane in sorted(filter(is_lane, self._store.list(""))):
            try:
                self.get(lane)
            except CorruptEntryError as error:
                yield lane, error

    def where(self, lane: str) -> str:
        """Address of a lane's record, for messages."""
        return f"{self._store.location}/{lane}"
