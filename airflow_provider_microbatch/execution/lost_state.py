"""State that is not there any more, as behind a restore of its folder: which batch a pipeline can go on from."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.execution.rewind_named import rewind_named
from airflow_provider_microbatch.execution.state_files import flat, versions_in
from airflow_provider_microbatch.execution.told_state import local_folder, published_result, state_of
from airflow_provider_microbatch.runtime.operator_schemas import SCHEMAS, names_in
from airflow_provider_microbatch.runtime.streaming_folder import STATE
from airflow_provider_microbatch.sinks import OpenSink


def lost_state(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey) -> CheckpointError | None:
    """The error of a batch that has failed since the state that it goes on from is not there; None if all of it is
    there, as far as the names of its files tell.

    :param key: the batch, of a pipeline that keeps state.
    """
    if key.lane != LIVE or key.id == 0:
        return None
    folder = local_folder(checkpoint) / STATE
    files = {(version, id): kind for version, id, kind in versions_in(folder)}
    kept = _Kept(checkpoint, sink, folder, files)
    missing = kept.missing(key.id - 1)
    if not missing:
        return None
    back = _way_back(checkpoint, kept, before=key.id - 1)
    stays = "planned" if checkpoint.lane(LIVE).commit_of(key.id) is None else "as it is"
    return CheckpointError(
        f"batch {key} goes on from the state of batch {LIVE}/{key.id - 1}, of which files are not in "
        f"{checkpoint.location}/{STATE} any more, such as {missing}: they were removed, or the folder was restored "
        f"from a backup of another moment than the logs. The batch stays {stays}. Bring the files back, and run this "
        f"task again. If nobody has them: {back}."
    )


def _way_back(checkpoint: Checkpoint, kept: _Kept, *, before: int) -> str:
    numbers = checkpoint.lane(LIVE).commit_log.ids()
    # No log goes on from the oldest that retention has kept: it has none before it.
    usable = (number for number in reversed(numbers) if number < before and (number > numbers[0] or number == 0))
    to = next((number for number in usable if kept.has(number)), -1)
    rewind = rewind_named(checkpoint, kept.sink, LIVE, to)
    if rewind is None:  # one further back is refused as well, since it takes out what this one does
        return "begin a checkpoint and a table of their own, which read from the beginning"
    if to < 0:
        return f"{rewind} takes all batches back, since the state of none is there, and the next runs read all again"
    return f"{rewind} goes back to batch {to}, the newest whose state is there, and the next runs make the later ones"


@dataclass(frozen=True)
class _Kept:
    """
    :param state: the folder of all state.
    :param files: the files of state that are there, by version and id: ``zip`` is a snapshot.
    """

    checkpoint: Checkpoint
    sink: OpenSink
    state: Path
    files: Mapping[tuple[int, str], str]

    def has(self, number: int) -> bool:
        """Whether the state after the batch is there: a batch of a query may have kept none that anybody goes on from,
        or in files that were converted behind a later batch alone."""
        return self._ids(number) is not None and not self.missing(number)

    def missing(self, number: int) -> str | None:
        """A file that the state after the batch is read from and that is not there; None if there is none."""
        for operator, told in (self._state(number) or {}).get("schemas", {}).items():
            for name in names_in(told):
                if not (self.state / operator / SCHEMAS / name).exists():
                    return f"{operator}/{SCHEMAS}/{name}"
        for batch_id in itertools.count(number, -1):
            ids = self._ids(batch_id)
            if ids is None:
                return None  # of before our time
            for id in ids:
                if (batch_id + 1, id) not in self.files:
                    return f"{batch_id + 1}_{id}"
            if all(self.files[batch_id + 1, id] == "zip" for id in ids):
                return None  # a snapshot is read by itself
        return None

    def _ids(self, number: int) -> list[str] | None:
        state = self._state(number)
        return None if state is None else list(flat(state["ids"]))

    def _state(self, number: int) -> Mapping[str, Any] | None:
        if number < 0 or self.checkpoint.lane(LIVE).commit_of(number) is None:
            return None
        key = BatchKey(LIVE, number)
        return state_of(published_result(self.checkpoint, key, [self.sink]), where=f"batch {key}")
