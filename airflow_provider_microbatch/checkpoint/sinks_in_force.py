"""The sinks that the pipeline writes to by now: into which tables comes what a rewind has run again.

No lane's newest attempt tells that. A plan that was refused, or that found nothing new, has none; an interval's lane
tells of the pipeline that ran it once; and between lanes only the clocks of workers would tell which is the newest. So
each run says it, in one place, where the last one to say it counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_microbatch.checkpoint.records import corrupt, decode_record, encode_record, to_json
from airflow_provider_microbatch.exceptions import CorruptEntryError, DefinitionError
from airflow_provider_microbatch.registry import of_today
from airflow_provider_microbatch.stores import Store

_NAME = "sinks"


class SinksInForce:
    """One file: the sink of the run that planned last, whatever came of that, and the sinks of clears and of attempts
    since. A clear may have the code of long ago, or the code to come, and an attempt may have slept since its plan, so
    theirs are kept beside the other, and tell nothing alone.

    :param store: scoped to ``microbatch/in-force``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self) -> Sequence[Mapping[str, Any]] | None:
        """The plain forms of these sinks, that of the run that planned last behind the others; None if no run has said
        it, as none of an older version does.

        :raises CorruptEntryError: if the record cannot be read.
        """
        data = self._store.get(_NAME)
        try:
            return None if data is None else [of_today(sink) for sink in self._read(data)]
        except DefinitionError as error:
            corrupt(self.where(), str(error))

    def planned(self, sink: Mapping[str, Any]) -> None:
        """Say that a run of the pipeline with this sink plans. Durable on return; writes nothing if that is on record.

        :param sink: its plain form.
        """
        self._say(sink, beside=False, begins=True)

    def ran(self, sink: Mapping[str, Any], *, begins: bool = False) -> None:
        """Say that a clear, or an attempt, is run by the pipeline with this sink; as :meth:`planned`. Writes nothing
        where nobody can read which sink was said.

        :param begins: whether it may be the first that is said; else nothing is written where no run has said its sink.
        """
        self._say(sink, beside=True, begins=begins)

    def where(self) -> str:
        """Address of the record, for messages."""
        return f"{self._store.location}/{_NAME}"

    def _say(self, sink: Mapping[str, Any], *, beside: bool, begins: bool) -> None:
        own = json.loads(to_json(sink))
        while True:
            there = self._store.get_versioned(_NAME)
            before = [] if there is None else self._readable(there.data)
            if beside and not before and (there is not None or not begins):
                return
            said = [own, *(one for one in before if beside and one != own)]
            if own in before and len(said) == len(before):
                return
            data = encode_record({"sinks": said})
            if there is None:
                if self._store.put_if_absent(_NAME, data):
                    return
            elif self._store.compare_and_put(_NAME, data, version=there.version) is not None:
                return

    def _readable(self, data: bytes) -> Sequence[Any]:
        """What is said there; nothing if that cannot be read: whoever says it anew mends it."""
        try:
            return self._read(data)
        except CorruptEntryError:
            return []

    def _read(self, data: bytes) -> Sequence[Any]:
        sinks = decode_record(data, where=self.where()).get("sinks")
        if not isinstance(sinks, list) or not sinks or not all(isinstance(sink, dict) for sink in sinks):
            corrupt(self.where(), "not what it should be: it lacks the sinks")
        return sinks
