"""Batches in a table that another life of its checkpoint made.

Such a checkpoint was restored from a backup, went on, and was restored once more to its earlier state. The rows that a
batch of this life is to hold may be in a batch of the other life.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.exceptions import ForeignBatchError, SinkError
from airflow_provider_microbatch.execution.identity import expected, planned_identity
from airflow_provider_microbatch.sinks import OpenSink


def first_of_another_life(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey) -> int | None:
    """The lowest committed batch around ``key``, which is missing, in whose place a table has a foreign batch; None if
    there is none. A place that a command has counted over is no batch's: what is there was told to who typed it.

    A table is asked for the neighbours of ``key`` up to the next batch of this life on either side. The batches of
    another life lie side by side, since behind one of them no batch of this life is planned.

    :raises SinkError: if the sink cannot tell.
    """
    found = (_first_in(checkpoint, table, key) for table in sink.tables)
    return min((number for number in found if number is not None), default=None)


def _first_in(checkpoint: Checkpoint, table: OpenSink, key: BatchKey) -> int | None:
    numbers = checkpoint.lane(key.lane).commit_log.ids()
    if type(table).batches is not OpenSink.batches:
        there = set(table.batches(key.lane, checkpoint.tables))
        numbers = [number for number in numbers if number in there]
    below = list(_foreign(checkpoint, table, key.lane, (number for number in reversed(numbers) if number < key.id)))
    if below:
        return below[-1]
    return next(_foreign(checkpoint, table, key.lane, (number for number in numbers if number > key.id)), None)


def _foreign(checkpoint: Checkpoint, table: OpenSink, lane: str, numbers: Iterable[int]) -> Iterator[int]:
    """Those of the numbers in whose place the table has a foreign batch, up to the first batch of this life."""
    for number in numbers:
        batch = planned_identity(checkpoint, BatchKey(lane, number))
        if batch is None or checkpoint.lane(lane).is_position(number):
            continue
        try:
            if table.contains(expected(checkpoint, batch)) is not None:
                return
        except ForeignBatchError:
            yield number


def check_of_this_life(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey) -> None:
    """Check that a batch that is committed and not in the table is not made again beside a batch of another life, which
    may have read the same range.

    :raises SinkError: if it would be; the message has the way on.
    """
    batch = planned_identity(checkpoint, key)
    if batch is None or sink.contains(expected(checkpoint, batch)) is not None:
        return
    first = first_of_another_life(checkpoint, sink, key)
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
