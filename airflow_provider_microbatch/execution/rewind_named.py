"""The rewind that a message names as a way on: it has to be accepted, and must not cost a table its rows."""

from __future__ import annotations

from contextlib import suppress

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.execution.published_to import published_to
from airflow_provider_microbatch.execution.published_together import published_beside
from airflow_provider_microbatch.sinks import OpenSink


def rewind_named(
    checkpoint: Checkpoint, sink: OpenSink, lane: str, to: int, *, lost: OpenSink | None = None
) -> str | None:
    """The command that takes all batches after ``to`` out and has them run again, in words. None where it would be
    refused: retention has removed what it needs, or one of these batches stays in a table. And where it would take one
    of them, for good, out of a table that the pipeline names no more and that got it together with one of now.

    :param sink: the pipeline's sink of now.
    :param lost: a table of the sink that has lost these batches, so that none of them stays there.
    """
    logs = checkpoint.lane(lane)
    if not logs.can_be_rewound_to(to):
        return None
    with suppress(CheckpointError):  # where an entry is torn nobody can tell, and whatever is refused is to be read
        later = [BatchKey(lane, number) for number in logs.offset_log.ids() if number > to]
        if not any(
            published_beside(checkpoint, sink, key) or _stays(checkpoint, sink, key, lost=lost) for key in later
        ):
            return command(logs, f"rewind --to {to} --drop-output")
    return None


def _stays(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey, *, lost: OpenSink | None) -> bool:
    wrote = (one for one in published_to(checkpoint, key, beside=sink) if not one.can_withdraw)
    return any(lost is None or not lost.is_written_by(one, checkpoint.tables) for one in wrote)
