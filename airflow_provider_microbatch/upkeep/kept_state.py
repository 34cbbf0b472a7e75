"""Finds the state that a stateful pipeline keeps, by its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.execution.told_state import local_folder, published_result, state_of
from airflow_provider_microbatch.runtime.kept_state import StateOfBatch
from airflow_provider_microbatch.runtime.streaming_folder import STATE
from airflow_provider_microbatch.upkeep.commands.site import Recorded


@dataclass(frozen=True, kw_only=True)
class KeptState:
    """The state that a committed batch left.

    :param key: the batch.
    :param state: its state, as the reader takes it.
    :param operators: Spark's own figures of each operator, as the attempt told them: rows, and bytes of memory.
    """

    key: BatchKey
    state: StateOfBatch
    operators: Sequence[Mapping[str, Any]]


def kept_state(checkpoint: Checkpoint, batch_id: int | None = None) -> KeptState:
    """The state after a committed batch, left by the attempt whose output is published. Reads only.

    :param batch_id: the batch; None: the newest committed batch.
    :raises CheckpointError: if there is no such batch, if it has kept no state, or if no Spark of this host finds files
        where the checkpoint lies.
    """
    lane = checkpoint.lane(LIVE)
    number = lane.commit_log.latest_id() if batch_id is None else batch_id
    entry = None if number is None else lane.commit_of(number)
    if number is None or entry is None:
        what = "no batch" if number is None else f"batch {LIVE}/{number} is not"
        raise CheckpointError(f"{checkpoint.location}: {what} committed, so there is no state of it.")
    key = BatchKey(LIVE, number)
    result = published_result(checkpoint, key, Recorded(checkpoint).sinks())
    found = state_of(result, where=f"batch {key} of {checkpoint.location}")
    if found is None:
        raise CheckpointError(f"batch {key} of {checkpoint.location} has kept no state: its pipeline is not stateful.")
    identity = checkpoint.identity()
    assert identity is not None, "a batch is committed"
    return KeptState(
        key=key,
        state=StateOfBatch(
            batch_id=number,
            query_id=identity.query_id,
            state=str(local_folder(checkpoint) / STATE),
            ids=found["ids"],
            conf=found["conf"],
            watermark_ms=int(found["nextWatermarkMs"]),
            schemas=found.get("schemas", {}),
        ),
        operators=result.get("stateOperators") or (),
    )
