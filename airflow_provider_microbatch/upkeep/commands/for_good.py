"""What a rewind takes out of a table that nothing writes any more: it does not come back there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import CorruptEntryError, MaintenanceError
from airflow_provider_microbatch.execution.published_together import published_beside
from airflow_provider_microbatch.execution.refused_plan import refused_plan
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.upkeep.commands.site import Published, Recorded, is_among


def written_from_now(checkpoint: Checkpoint, recorded: Recorded, lane: str) -> list[OpenSink]:
    """The sinks that what a lane reads again may be published to, as far as is known from here: of the lane itself, of
    the live one, and of the one that ran last, that of the plan that was refused last, or of the newest attempt if one
    has been made since. The lane of an interval that ran once tells of the pipeline of that time alone, and between
    lanes only clocks would tell. Empty if one cannot be used from here.
    """
    newest, found = recorded.newest, list[OpenSink]()
    with suppress(MaintenanceError, CorruptEntryError):
        for name in dict.fromkeys((lane, LIVE, lane if newest is None else newest.key.lane)):
            refused = refused_plan(checkpoint, name)
            sink = recorded.named(refused.definition if refused is not None else recorded.ran_last(name) or "")
            found += [sink] if sink is not None else []
        return found or recorded.sinks()[:1]
    return []


def not_put_back(sinks: Sequence[OpenSink], found: Sequence[Published]) -> list[str]:
    """The tables, of those that have a batch, into which its next run may not put it: one of the sinks lacks them.

    :param sinks: as :func:`written_from_now` has them; where that is not known, the pipeline may write to any table.
    """
    return [one.sink.location() for one in found if not all(is_among(one.sink, sink.tables) for sink in sinks)]


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
