"""What a rewind takes out of a table that nothing writes any more: it does not come back there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import CorruptEntryError, DefinitionError, MaintenanceError
from airflow_provider_microbatch.execution.published_together import published_beside
from airflow_provider_microbatch.execution.recorded_sinks import forms_in
from airflow_provider_microbatch.sinks import OpenSink, Sink, SinkContext
from airflow_provider_microbatch.upkeep.commands.site import Published, Recorded, is_among, tables_of


def written_from_now(checkpoint: Checkpoint, recorded: Recorded, lane: str) -> list[Sequence[OpenSink]]:
    """The sinks of each pipeline that may make again what a lane reads again, as far as is known from here: of the lane
    itself, of the live one, and of the one that ran last, that of the plan that was refused last, or of the newest
    attempt if one has been made since. The lane of an interval that ran once tells of the pipeline of that time alone,
    and between lanes only clocks would tell. Empty if an entry that tells cannot be read.
    """
    newest, found = recorded.newest, list[Sequence[OpenSink]]()
    with suppress(MaintenanceError, CorruptEntryError):
        for name in dict.fromkeys((lane, LIVE, lane if newest is None else newest.key.lane)):
            refused = recorded.refused(name)
            definition = refused.definition if refused is not None else recorded.ran_last(name)
            sinks = None if definition is None else _sinks_of(checkpoint, recorded, definition)
            found += [sinks] if sinks is not None else []
        return found or [recorded.sinks()[:1]]
    return []


def _sinks_of(checkpoint: Checkpoint, recorded: Recorded, definition: str) -> Sequence[OpenSink] | None:
    """The sink of the definition, or those of its tables that can be used from here, where one of them cannot; None if
    it is not on record."""
    try:
        sink = recorded.named(definition)
        return None if sink is None else [sink]
    except MaintenanceError:
        usable = list[OpenSink]()
        for form in forms_in(checkpoint.definitions.sink(definition)).values():
            with suppress(DefinitionError):
                usable.append(Sink.from_dict(form).open(SinkContext()))
        return usable


def not_put_back(pipelines: Sequence[Sequence[OpenSink]], found: Sequence[Published]) -> list[str]:
    """The tables, of those that have a batch, into which its next run may not put it: one of the pipelines lacks them.

    :param pipelines: as :func:`written_from_now` has them; where that is not known, the pipeline may write to any
        table.
    """
    written = [tables_of(sinks) for sinks in pipelines]
    return [one.sink.location() for one in found if not all(is_among(one.sink, tables) for tables in written)]


def check_put_back(
    checkpoint: Checkpoint,
    recorded: Recorded,
    pipelines: Sequence[Sequence[OpenSink]],
    key: BatchKey,
    found: Sequence[Published],
) -> None:
    """Check that a batch that went to several tables together is not taken out of one that the pipeline names no more:
    its next run puts it back into the others alone. What is in such a table alone moves to that of now.

    :param pipelines: as :func:`written_from_now` has them.
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
    away = not_put_back(pipelines, tables)
    if away and (
        len(away) < len(tables) or any(published_beside(checkpoint, sink, key) for sinks in pipelines for sink in sinks)
    ):
        where = " and ".join(dict.fromkeys(away))
        raise MaintenanceError(
            f"batch {key} is in {where}, and was published together with another table's, which the pipeline writes to "
            f"as it ran last, or was refused last. It does not write to {where}: taken out there, the batch would not "
            "come back. Nothing was done. Name both tables, let the pipeline run, and type this again; or, if the "
            "batch may be lost there, with --allow-skip."
        )
