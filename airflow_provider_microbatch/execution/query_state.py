"""The state that a streaming query has left in a checkpoint that a stateful pipeline goes on from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_microbatch.checkpoint.by_hand import is_position
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.codec import STATE_IDS
from airflow_provider_microbatch.checkpoint.entries import CommitEntry
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.runtime.streaming import EVOLUTION, FORMAT


def state_of_query(checkpoint: Checkpoint, key: BatchKey, commit: CommitEntry) -> Mapping[str, Any] | None:
    """The state of a batch that a streaming query has committed, as an attempt would tell it. None for another batch,
    and if the query kept no state to go on from: in checkpoint format 1, or with Spark's own provider, without ids."""
    if commit.epoch is not None or commit.progress.get("state") is not None or not commit.extra.get(STATE_IDS):
        return None
    entry = checkpoint.lane(key.lane).offset_log.get(key.id)
    if entry is None or is_position(entry):
        return None
    # Attempts keep state by ids, and their folders name sources by position, whatever the query did.
    conf = {name: value for name, value in entry.conf.items() if name not in (FORMAT, EVOLUTION)}
    return {
        "ids": commit.extra[STATE_IDS],
        "base": None,
        "conf": conf,
        "nextWatermarkMs": commit.next_watermark_ms,
        "since": key.id + 1,
    }
