"""What a rewind takes out of a table that nothing writes any more: it does not come back there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import CorruptEntryError, MaintenanceError
from airflow_provider_microbatch.execution.published_together import published_beside
from airflow_provider_microbatch.execution.refused_plan import refused_plan
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.upkeep.commands.site import Published, Recorded, is_among, tables_of


def written_from_now(checkpoint: Checkpoint, recorded: Recorded, lane: str) -> list[OpenSink]:
    """The sinks that what a lane reads again is published to, as far as is known from here: that of the plan that was
    refused last, if none has been made since; else :meth:`Recorded.today`. Empty if one cannot be used from here.
    """
    with suppress(MaintenanceError, CorruptEntryError):
        refused = refused_plan(checkpoint, lane)
        sink = None if refused is None else recorded.named(refused.definition)
        return recorded.today(lane) if sink is None else [sink]
    return []


def not_put_back(sinks: Sequence[OpenSink], found: Sequence[Published]) -> list[str]:
    """The tables, of those that have a batch, into which its next run does not put it.

    :param sinks: as :func:`written_from_now` has them; where that is not known, the pipeline may write to any table.
    """
    named = tables_of(sinks)
    return [one.sink.location() for one in found if sinks and not is_among(one.sink, named)]


def check_put_back(
    checkpoint: Checkpoint, recorded: Recorded, sinks: Sequence[OpenSink], key: BatchKey, found: Sequence[Published]
) -> None:
    """Check that a batch that went to several tables together is not taken out of one that the pipeline names no more:
    its next run puts it back into the others alone. What is in such a table alone moves to that of now.

    :param sinks: as :func:`written_from_now` has them.
    :param found: the batch, in each table that has it.
    :raises MaintenanceError: if it would be.
    """
    letters = [sink.definition.dead_letters for sink in recorded.usable()]
    # Whatever becomes of a batch's dead letters, its rows come back; and what nobody can take out of a table stays.
    tables = [
        one
        for one in found
        if one.sink.definition.can_withdraw
        and not any(one.sink.definition.is_same_place(other) for other in letters if other)
    ]
    away = not_put_back(sinks, tables)
    if away and (len(away) < len(tables) or any(published_beside(checkpoint, sink, key) for sink in sinks)):
        where = " and ".join(dict.fromkeys(away))
        raise MaintenanceError(
            f"batch {key} is in {where}, and was published together with another table's, which the pipeline writes to "
            f"as it ran last, or was refused last. It does not write to {where}: taken out there, the batch would not "
            "come back. Nothing was done. Name both tables, let the pipeline run, and type this again; or, if the "
            "batch may be lost there, with --allow-skip."
        )
