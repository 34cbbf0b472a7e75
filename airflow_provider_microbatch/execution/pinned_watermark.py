"""Whether a batch pins the watermark of the state that it goes on from."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import OffsetEntry
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import MicroBatchError
from airflow_provider_microbatch.execution.kept_states import ANEW, KeptStates
from airflow_provider_microbatch.execution.rewind_named import way_back
from airflow_provider_microbatch.sinks import OpenSink


def told_of_other_watermark(
    checkpoint: Checkpoint, key: BatchKey, entry: OffsetEntry, state: Mapping[str, Any]
) -> str | None:
    """That a batch pins another watermark than its state has come to, in words; None if it does not. So it is where a
    replay has replaced the state after the planner had looked, and where an older version, which took the watermark of
    the attempt that was replaced, has planned the batch: it drops rows that are not late, or takes rows that are.

    :param key: the batch, which is not the first.
    :param entry: its own.
    :param state: what it goes on from.
    """
    before, at_ms = BatchKey(key.lane, key.id - 1), int(state["nextWatermarkMs"])
    if entry.watermark_ms == at_ms or not checkpoint.replays.epochs.all(before):
        return None
    return (
        f"batch {key} of {checkpoint.location} pins the watermark {entry.watermark_ms}, and a replay of batch "
        f"{before} has replaced the state that it goes on from, which has come to {at_ms} (milliseconds since the "
        "epoch): rows would be taken for late that are not, or the other way round."
    )


def way_to_right_watermark(checkpoint: Checkpoint, key: BatchKey, sink: OpenSink) -> str:
    """How the batch is planned again with the watermark of its state, with all that have gone on from it, in words."""
    with suppress(MicroBatchError):  # whether a rewind is refused nobody can tell then, and what is wrong is to be read
        way = way_back(KeptStates(checkpoint=checkpoint, sinks=[sink]), sink, to=key.id - 1)
        if way is not None:
            return f"{way.rewind} takes it back with all that follow, and the next runs make these batches again."
    return f"No rewind is known that takes it back. To have it made otherwise, {ANEW}."
