"""The batches whose state is there still: which ones a pipeline that keeps state can go back to.

The logs keep all batches, unless ``min_batches_to_retain`` says how many; state is kept of the newest hundred then, and
files of it may be gone, as behind a restore of their folder.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import CommitEntry
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import CheckpointError, SinkError
from airflow_provider_microbatch.execution.state_files import cut_off, flat, unreadable_snapshot, versions_in
from airflow_provider_microbatch.execution.told_state import has_left_state, local_folder, published_result, state_of
from airflow_provider_microbatch.runtime.operator_schemas import ADDRESSES, SCHEMAS, names_in
from airflow_provider_microbatch.runtime.streaming_folder import STATE
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.stores.location import open_store

ANEW = "begin a checkpoint and a table of their own, which read from the beginning"
"""What is left to a pipeline where no rewind goes on, in words."""


class CannotTell(CheckpointError):
    """Which state is there cannot be told, as of a folder that cannot be read: it may be whole."""


@dataclass(frozen=True, kw_only=True)
class KeptStates:
    """The states of the live batches, as far as the names of their files tell.

    :param sinks: asked which attempt's output is published, and so which state counts.
    """

    checkpoint: Checkpoint
    sinks: Sequence[OpenSink]

    def has(self, number: int) -> bool:
        """Whether the state after the batch is there: a batch of a query may have kept none that anybody goes on from,
        or in files that were converted behind a later batch alone.

        :raises SinkError: if a table cannot tell.
        """
        return self._ids(number) is not None and not self.missing(number)

    def missing(self, number: int) -> str | None:
        """A file that the state after the batch is read from and that is not there, or not as Spark wrote it, as far as
        its size tells; None if there is none.

        :raises CannotTell: if a file or folder cannot be read.
        :raises CheckpointError: if an entry of the logs cannot.
        :raises SinkError: if a table cannot tell.
        """
        state = self._state(number) or {}
        with _telling():
            schema = self._missing_schema(state)
        if schema is not None:
            return schema
        read = set[tuple[int, str]]()
        for batch_id in itertools.count(number, -1):
            ids = self._ids(batch_id)
            if ids is None:
                return self._cut_off(read)  # the others are of before our time
            for id in ids:
                if (batch_id + 1, id) not in self._files:
                    return f"{batch_id + 1}_{id}"
                read.add((batch_id + 1, id))
            if all(self._files[batch_id + 1, id] == "zip" for id in ids):
                return self._unreadable(batch_id, ids) or self._cut_off(read)  # a snapshot is read by itself
        return None

    def _cut_off(self, versions: Collection[tuple[int, str]]) -> str | None:
        with _telling():
            return cut_off(self._folder, versions)

    def _missing_schema(self, state: Mapping[str, Any]) -> str | None:
        schemas = state.get("schemas", {})
        for operator in state.get("ids", {}):
            # Of a query's batch whose columns nobody knows any more.
            if operator not in schemas and (self._folder / operator / SCHEMAS).is_dir():
                return f"{operator}/{ADDRESSES}"
        for operator, told in schemas.items():
            for name in names_in(told):
                if not (self._folder / operator / SCHEMAS / name).exists():
                    return f"{operator}/{SCHEMAS}/{name}"
        return None

    def _unreadable(self, batch_id: int, ids: Sequence[str]) -> str | None:
        if batch_id not in self._snapshots:  # those of later batches are read from it too
            with _telling():
                self._snapshots[batch_id] = unreadable_snapshot(self._folder, batch_id + 1, frozenset(ids))
        return self._snapshots[batch_id]

    def newest(self, *, before: int) -> int | None:
        """The newest batch before this one that a rewind can go back to; None if there is none."""
        return next((number for number in reversed(self._candidates) if number < before and self.has(number)), None)

    def oldest(self, *, after: int) -> int | None:
        """The oldest batch after this one that a rewind can go back to; None if there is none."""
        return next((number for number in self._candidates if number > after and self.has(number)), None)

    @cached_property
    def _snapshots(self) -> dict[int, str | None]:
        """What :func:`unreadable_snapshot` says, by batch."""
        return {}

    @cached_property
    def _candidates(self) -> Sequence[int]:
        """Batches of which there are files, and of which alone the table is asked: a log may be long."""
        lane = self.checkpoint.lane(LIVE)
        there = {version - 1 for version, _ in self._files}
        kept = (number for number in lane.commit_log.ids() if number in there)
        return list(itertools.dropwhile(lambda number: not lane.can_be_rewound_to(number), kept))

    @cached_property
    def _folder(self) -> Path:
        # Where they lie: a command looks at the logs through a draft, which has no folder.
        return local_folder(Checkpoint(open_store(self.checkpoint.location))) / STATE

    @cached_property
    def _files(self) -> Mapping[tuple[int, str], str]:
        """By version and id, the kind of the files that are there: ``zip`` is a snapshot."""
        with _telling():
            return {(version, id): kind for version, id, kind in versions_in(self._folder)}

    def _ids(self, number: int) -> list[str] | None:
        state = self._state(number)
        return None if state is None else list(flat(state["ids"]))

    def _state(self, number: int) -> Mapping[str, Any] | None:
        if number < 0 or self.checkpoint.lane(LIVE).commit_of(number) is None:
            return None
        key = BatchKey(LIVE, number)
        return state_of(published_result(self.checkpoint, key, self.sinks), where=f"batch {key}")


@contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotTell(f"which state is there cannot be told: {error}") from error


def kept_states(checkpoint: Checkpoint, sinks: Sequence[OpenSink]) -> KeptStates | None:
    """The states of the live batches; None if these keep none, so that the next one needs none to go on from."""
    newest = _newest_commit(checkpoint)
    if newest is None or not has_left_state(newest):
        return None
    return KeptStates(checkpoint=checkpoint, sinks=sinks)


def gone_on(checkpoint: Checkpoint, sinks: Sequence[OpenSink], key: BatchKey, *, after: int) -> str | None:
    """Why some of the batches after one, up to the newest, are not cleared one by one, in words; None if they can be.

    :param key: the newest.
    :param after: the number of the batch before them.
    """
    if after + 1 == key.id or key.lane != LIVE or kept_states(checkpoint, sinks) is None:
        return None
    return "later batches have gone on from the state of all but the newest"


def _newest_commit(checkpoint: Checkpoint) -> CommitEntry | None:
    for number in reversed(checkpoint.commit_log.ids()):
        with suppress(CheckpointError):  # torn: the one before it tells as well
            return checkpoint.commit_log.get(number)
    return None


def can_be_rewound_to(checkpoint: Checkpoint, sinks: Sequence[OpenSink], lane: str, to: int) -> bool:
    """Whether ``microbatch rewind`` may go back to the batch, as far as retention and files of state tell. Not where
    nobody can tell: whoever names a rewind has something else to say."""
    if not checkpoint.lane(lane).can_be_rewound_to(to):
        return False
    if lane != LIVE or to < 0:
        return True
    with suppress(CheckpointError, SinkError):
        kept = kept_states(checkpoint, sinks)
        return kept is None or kept.has(to)
    return False
