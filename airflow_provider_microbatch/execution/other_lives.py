"""Batches in a table that another life of its checkpoint made.

Such a checkpoint was restored from a backup, went on, and was restored once more to its earlier state. The rows that a
batch of this life is to hold may be in a batch of the other life.
"""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.exceptions import ForeignBatchError, SinkError
from airflow_provider_microbatch.execution.identity import expected, planned_identity
from airflow_provider_microbatch.sinks import OpenSink


def first_of_another_life(checkpoint: Checkpoint, sink: OpenSink, lane: str) -> int | None:
    """The lowest committed batch of the lane in whose place the sink has a foreign batch; None if there is none. Asks
    the sink for each batch, so it is for callers that have found a missing one.

    :raises SinkError: if the sink cannot tell.
    """
    for number in checkpoint.lane(lane).commit_log.ids():
        batch = planned_identity(checkpoint, BatchKey(lane, number))
        try:
            if batch is not None:
                sink.contains(expected(checkpoint, batch))
        except ForeignBatchError:
            return number
    return None


def check_of_this_life(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey) -> None:
    """Check that a batch that is committed and not in the table is not made again beside a batch of another life, which
    may have read the same range.

    :raises SinkError: if it would be; the message has the way on.
    """
    batch = planned_identity(checkpoint, key)
    if batch is None or sink.contains(expected(checkpoint, batch)) is not None:
        return
    first = first_of_another_life(checkpoint, sink, key.lane)
    if first is not None:
        raise SinkError(
            f"batch {key} is committed and not in {sink.location()}. {another_life(checkpoint, key, first)}"
        )


def another_life(checkpoint: Checkpoint, key: BatchKey, first: int) -> str:
    """The meaning of another life's batch for a batch that is missing, and the way on, in words.

    :param first: see :func:`first_of_another_life`.
    """
    rewind = command(checkpoint.lane(key.lane), f"rewind --to {first - 1} --drop-output")
    return (
        f"In the place of batch {first} is one of another life of this checkpoint, which was restored from a backup, "
        "went on, and was restored once more: what this batch has read may be in that one, and would be there twice. "
        f"{rewind} takes out what is there of either, and has it read again."
    )
