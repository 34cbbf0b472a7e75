"""Batches that an earlier rewind has taken out, and that are in a table again: what the next one does about them."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import MaintenanceError, SinkError
from airflow_provider_microbatch.execution.came_back import goes_back_to, is_left, told_of
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.upkeep.commands.site import Recorded, tables_of
from airflow_provider_microbatch.upkeep.commands.steps import DropOutput


@dataclass(frozen=True, kw_only=True)
class BackAgain:
    """:param id: number of the batch.
    :param table: has rows of it.
    """

    id: int
    table: OpenSink


def back_again(checkpoint: Checkpoint, recorded: Recorded, *, lane: str, to: int) -> list[BackAgain]:
    """The batches of the lane that came back behind ``to``, whether or not the log has one under that number now. In
    a table to which the pipeline does not write any more they stay: nothing comes on top of them there.

    :raises MaintenanceError: if they may be of what batches up to ``to`` have read.
    """
    found = list[BackAgain]()
    for table in _usable(recorded):
        with suppress(SinkError):  # one that is away is told of as it is asked for its batches
            # Also those of which no rewind is on record, as after a copy: then one to before all batches is enough.
            back = table.came_back(lane, None, checkpoint.tables.following_moves)
            if back and is_left(checkpoint, table, lane):
                continue
            enough = goes_back_to(checkpoint, lane, back) if back else None
            if enough is not None and to > enough:
                raise MaintenanceError(f"{told_of(checkpoint, table, lane, back)} Nothing was done.")
            found += [BackAgain(id=id, table=table) for id in back if id > to]
    return found


def drop_again(found: Collection[BackAgain], *, lane: str, to: int) -> list[DropOutput]:
    """The steps that take them out once more, newest first."""
    return [
        DropOutput(
            key=str(BatchKey(lane, one.id)),
            epoch=0,
            sink=one.table.definition.to_dict(),
            where=one.table.location(),
            why="it was taken out before, and came back",
            to=to,
        )
        for one in sorted(found, key=lambda one: -one.id)
    ]


def _usable(recorded: Recorded) -> list[OpenSink]:
    with suppress(MaintenanceError):  # no pipeline is on record
        return tables_of(recorded.usable())
    return []
