"""Batches whose dead letters were run again, in a lane of their own, as that lane's offset entries say."""

from __future__ import annotations

import json
from collections.abc import Mapping

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt, Offset
from airflow_provider_microbatch.checkpoint.key import LETTERS, BatchKey
from airflow_provider_microbatch.exceptions import CheckpointError, SourceError

SOURCE = "dead_letters"
"""Name of the only source of a batch that is made of dead letters."""


def batches_of(offset: Offset | None) -> list[BatchKey]:
    """The batches whose letters a position stands for: those of its own range alone.

    :raises SourceError: if the offset is no such position.
    """
    if offset is None:
        return []
    try:
        return [BatchKey.parse(text) for text in json.loads(offset)["batches"]]
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(f"{offset:.100} is no position among dead letters.") from error


def taken(checkpoint: Checkpoint) -> dict[BatchKey, BatchKey]:
    """For each batch whose dead letters were run again, the batch that has them, or is planned to have them."""
    lane = checkpoint.lane(LETTERS)
    found: dict[BatchKey, BatchKey] = {}
    for number in lane.offset_log.ids():
        entry = lane.offset_log.get(number)
        ends: Mapping[str, Offset | None] = {} if entry is None else entry.ends
        found |= dict.fromkeys(batches_of(ends.get(SOURCE)), BatchKey(LETTERS, number))
    return found


def check_not_taken(checkpoint: Checkpoint, attempt: Attempt) -> None:
    """Check that an attempt makes no dead letters a second time: a batch that is run anew has rows and dead letters
    anew, and the rows of its earlier letters would be in the table twice.

    :raises CheckpointError: if the attempt is for a replay, and the batch's letters have been run again.
    """
    if attempt.request is None:
        return
    by = taken(checkpoint).get(attempt.key)
    if by is not None:
        where = checkpoint.location
        raise CheckpointError(
            f"batch {attempt.key} is not replayed: its dead letters were run again as batch {by}, so that what the "
            "replay makes of them would be in the table twice. Take these out first: `microbatch rewind "
            f"{where} --lane {LETTERS} --to {by.id - 1} --drop-output`; then replay the batch, and its dead letters of "
            "then."
        )
