"""Dead letters that stand in the way of a rewind: those that were run again have rows of their own in the tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LETTERS, BatchKey
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.exceptions import MaintenanceError
from airflow_provider_microbatch.execution.dead_letters import OpenLetters
from airflow_provider_microbatch.execution.letters_taken import taken
from airflow_provider_microbatch.execution.planned import load_batch
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.upkeep.commands.lost_rows import lost_of
from airflow_provider_microbatch.upkeep.commands.site import Published, Recorded


def check_letters(
    checkpoint: Checkpoint, recorded: Recorded, *, lane: str, later: Sequence[int], published: Collection[int]
) -> None:
    """Check that no dead letters of what is rewound were run again: a batch that runs again produces its rows and dead
    letters anew, and the table would have these rows twice.

    :param recorded: the pipeline on record, whose tables may have more batches of dead letters than the log.
    :param lane: the lane that is rewound.
    :param later: its batches that run again.
    :param published: those of them that were published, for all that the logs and the tables say of them; others are
        looked up.
    :raises MaintenanceError: if some were run again, or may have been, naming the command that takes them out.
    """
    if lane == LETTERS:
        return
    by = taken(checkpoint)
    found = [by[key] for number in later if (key := BatchKey(lane, number)) in by]
    if found:
        kept = [one.sink for key in found for one in recorded.everywhere(key) or recorded.of_another_life(key)]
        raise MaintenanceError(
            "dead letters of what would be rewound were run again, or are planned to be, as batches "
            f"{', '.join(map(str, found))}: their rows would be in the table twice. {_way(checkpoint, found, kept)}"
        )
    if not any(number in published or recorded.everywhere(BatchKey(lane, number)) for number in later):
        return  # it has no letters yet that could have been run again
    unknown = _unknown(checkpoint, recorded)
    if unknown:
        kept = [one.sink for lives in unknown.values() for one in lives]
        raise MaintenanceError(
            f"batches {', '.join(map(str, unknown))} in the table are of after the backup that this checkpoint was "
            "restored from. They have dead letters that were run again, and nobody can tell whose: those of what would "
            f"be rewound would be in the table twice. {_way(checkpoint, list(unknown), kept)}"
        )


def made_anew(
    checkpoint: Checkpoint, recorded: Recorded, letters: OpenSource, end: Offset | None, *, to: int
) -> list[str] | None:
    """How the letters come back that a batch of dead letters has read and that nobody can read any more, once its rows
    are taken out: the clears that make them anew, in words. Rows of letters are the only copy where there are none.

    :param letters: the source of the lane's batches.
    :param end: what the batch has read.
    :param to: the lane is rewound to this batch; what is taken out with it is made of letters of its own.
    :return: None if some do not come back.
    """
    if not isinstance(letters, OpenLetters):
        return None
    gone = {
        key: way
        for key, way in letters.gone(end).items()
        if (key.lane != LETTERS or key.id <= to) and not _is_planned_anew(checkpoint, key)
    }
    ways = [way for key, way in gone.items() if way is not None and _can_be_read(checkpoint, recorded, key)]
    return ways if len(ways) == len(gone) else None


def _is_planned_anew(checkpoint: Checkpoint, key: BatchKey) -> bool:
    """Whether a rewind has put the batch away, and what it had read is in no batch yet, or in one with letters of its
    own. One that was made since under that number is behind none: retention may have removed it."""
    newest = checkpoint.lane(key.lane).offset_log.latest_id()
    if newest is not None and key.id <= newest:
        return False
    return any(key.id in one.plans for one in checkpoint.maintenance.taken_out().get(key.lane, ()))


def _can_be_read(checkpoint: Checkpoint, recorded: Recorded, key: BatchKey) -> bool:
    """Whether a clear of the batch finds in the sources all that it had read there, also where a source would go on
    without what is missing."""
    planned = load_batch(checkpoint, key)
    for name, end in planned.entry.ends.items():
        if planned.is_nothing_of(name):
            continue
        source, start = recorded.source(name, lane=key.lane), planned.starts.get(name)
        if source is None:
            return False
        is_unknown = name in planned.entry.unresolved
        reason = source.why_not_from(start) if is_unknown else source.why_not_again(start, end)
        if reason is not None or (not is_unknown and lost_of(checkpoint, key, name, source, start, end) is not None):
            return False
    return True


def _way(checkpoint: Checkpoint, found: Sequence[BatchKey], tables: Sequence[OpenSink]) -> str:
    """The way on with batches of dead letters that are in these tables, in words."""
    kept = sorted({table.location() for table in tables if table.definition.keeps_for_good})
    if kept:
        return f"Nobody can take these out of {' and '.join(kept)}. Nothing was done."
    rewind = command(checkpoint.lane(LETTERS), f"rewind --to {min(key.id for key in found) - 1} --drop-output")
    return f"Take these out first: {rewind}; then rewind, and replay the dead letters of then."


def _unknown(checkpoint: Checkpoint, recorded: Recorded) -> dict[BatchKey, list[Published]]:
    """Batches of dead letters that tables have and no log knows, ascending. One that a command has counted over is
    known: the letters that it may have are on record as run again."""
    try:
        holders = sorted(recorded.told(LETTERS).holders.items())
    except MaintenanceError:
        return {}  # no pipeline is on record
    lane = checkpoint.lane(LETTERS)
    first = min(lane.offset_log.ids(), default=0)  # retention has removed those before
    later = ((number, tables) for number, tables in holders if number >= first and not lane.is_position(number))
    found = ((BatchKey(LETTERS, number), tables) for number, tables in later)
    return {key: lives for key, tables in found if (lives := recorded.of_another_life(key, tables=tables))}
