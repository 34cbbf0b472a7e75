"""Batches that stay in their table, since none can be taken out of it: what a command does in place of that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.sinks.manifest import counted_over
from airflow_provider_microbatch.upkeep.commands.not_in import NotIn


def told_of(checkpoint: Checkpoint, numbers: Sequence[int], sinks: Iterable[OpenSink], *, lane: str) -> str:
    """What there is to say of batches of after a backup that stay where they are, and the ways on.

    :param numbers: of the lane, ascending.
    """
    where = " and ".join(sorted({sink.location() for sink in sinks}))
    told = (
        f"batches {', '.join(map(str, numbers))} in {where} are of after the backup that this checkpoint was restored "
        "from, and no batch can be taken out of there: they stay. "
    )
    way = counted_over(checkpoint.location, lane)
    if way is not None:
        return f"{told}{way}."
    return f"{told}No run of that interval makes a batch before the pipeline writes to another table."


def not_in(attempt: Attempt, table: OpenSink) -> NotIn | None:
    """The step that looks whether an attempt, which may have passed its fence and slept, has published meanwhile; None
    if the batch can be taken out of the table, or nobody can tell whether it is the attempt's."""
    if attempt.identity is None or not table.definition.keeps_for_good:
        return None
    return NotIn(
        key=str(attempt.key),
        epoch=attempt.epoch,
        identity=attempt.identity.to_dict(),
        sink=table.definition.to_dict(),
        where=table.location(),
        why="its attempt may have gone on while the command began",
    )
