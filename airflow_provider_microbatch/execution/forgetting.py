"""Has each attempt leave out what was asked to be erased, and tells which batches were published before they could."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.exceptions import AttemptFencedError
from airflow_provider_microbatch.execution.summary import BatchSummary, summaries
from airflow_provider_microbatch.runtime.checks import Forgotten
from airflow_provider_microbatch.sinks import Manifest


def forgotten_of(checkpoint: Checkpoint) -> list[Forgotten]:
    """What an attempt that begins now leaves out."""
    return [
        Forgotten(condition=one.condition, number=one.number, stages=one.sinks) for one in checkpoint.forgotten.active()
    ]


def check_left_out(checkpoint: Checkpoint, staged: Manifest) -> None:
    """Asked before a stage is published.

    :raises AttemptFencedError: if something was asked to be forgotten since the attempt's job was made.
    """
    missing = [one.number for one in checkpoint.forgotten.active() if one.number not in staged.forgotten]
    if missing:
        raise AttemptFencedError(
            f"batch {staged.key} attempt {staged.epoch} has not left out what `microbatch forget` has on record since "
            f"(entry {', '.join(map(str, missing))}). Nothing was published; the next try leaves it out."
        )


def holding(checkpoint: Checkpoint, numbers: Sequence[int]) -> Iterator[BatchSummary]:
    """Committed batches of all lanes that may have rows which one of these entries names: their output was made before
    it. Reads all entries that are kept."""
    for lane in checkpoint.lanes():
        for batch in summaries(checkpoint, lane=lane):
            if batch.state == "committed" and not set(numbers) <= set(batch.forgotten):
                yield batch
