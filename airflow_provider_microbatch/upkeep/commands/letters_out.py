"""Dead letters that stand in the way of a rewind: those that were run again have rows of their own in the tables."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LETTERS, BatchKey
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.exceptions import MaintenanceError
from airflow_provider_microbatch.execution.letters_taken import taken
from airflow_provider_microbatch.upkeep.commands.site import Recorded


def check_letters(checkpoint: Checkpoint, recorded: Recorded, *, lane: str, later: Sequence[int]) -> None:
    """Check that no dead letters of what is rewound were run again: a batch that runs again produces its rows and dead
    letters anew, and the table would have these rows twice.

    :param recorded: the pipeline on record, whose tables may have more batches of dead letters than the log.
    :param lane: the lane that is rewound.
    :param later: its batches that run again.
    :raises MaintenanceError: if some were run again, or may have been, naming the command that takes them out.
    """
    if lane == LETTERS:
        return
    by = taken(checkpoint)
    found = [by[key] for number in later if (key := BatchKey(lane, number)) in by]
    if found:
        raise MaintenanceError(
            "dead letters of what would be rewound were run again, or are planned to be, as batches "
            f"{', '.join(map(str, found))}: their rows would be in the table twice. Take these out first: "
            f"{_out(checkpoint, min(key.id for key in found))}; then rewind, and replay the dead letters of then."
        )
    unknown = _unknown(checkpoint, recorded)
    if unknown:
        raise MaintenanceError(
            f"batches {', '.join(map(str, unknown))} in the table are of after the backup that this checkpoint was "
            "restored from. They have dead letters that were run again, and nobody can tell whose: those of what would "
            f"be rewound would be in the table twice. Take them out first: {_out(checkpoint, unknown[0].id)}; then "
            "rewind, and replay the dead letters of then."
        )


def _out(checkpoint: Checkpoint, first: int) -> str:
    return command(checkpoint.lane(LETTERS), f"rewind --to {first - 1} --drop-output")


def _unknown(checkpoint: Checkpoint, recorded: Recorded) -> list[BatchKey]:
    """Batches of dead letters that tables have and no log knows, ascending."""
    try:
        holders = sorted(recorded.told(LETTERS).holders.items())
    except MaintenanceError:
        return []  # no pipeline is on record
    first = min(checkpoint.lane(LETTERS).offset_log.ids(), default=0)  # retention has removed those before
    found = ((BatchKey(LETTERS, number), tables) for number, tables in holders if number >= first)
    return [key for key, tables in found if recorded.of_another_life(key, tables=tables)]
