"""What a committed batch has read and its next plan would go on without, and whether that plan stops there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import CheckpointError, MaintenanceError
from airflow_provider_microbatch.execution.committed import told_of
from airflow_provider_microbatch.execution.progress import told as told_in
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.sources.ways_on import TellsLost
from airflow_provider_microbatch.upkeep.commands.plan import Drafting


def lost_of(
    checkpoint: Checkpoint, key: BatchKey, name: str, source: OpenSource, start: Offset | None, end: Offset | None
) -> str | None:
    """Describe it, with names; None if nothing is lost. The attempts that were published have told what they read.

    :param name: of the source.
    :param start: where the batch began in the source.
    :raises SourceError: if the source cannot be asked.
    """
    if not isinstance(source, TellsLost):
        return source.left_out(start, end)
    commit = None
    with suppress(CheckpointError):  # of a torn entry nobody knows what the reader told
        commit = checkpoint.lane(key.lane).commit_log.get(key.id)
    told = [] if commit is None else told_of(checkpoint, key, commit, name)
    return source.lost_anew(start, end, told=told)


def lost_of_put_away(
    checkpoint: Checkpoint, commit: str | None, name: str, source: OpenSource, start: Offset | None, end: Offset | None
) -> str | None:
    """The same of a batch whose entries a command has put away.

    :param commit: where its commit entry is; None if that is not known.
    """
    if not isinstance(source, TellsLost):
        return source.left_out(start, end)
    entry = None
    with suppress(CheckpointError):
        entry = None if commit is None else checkpoint.put_away_commit(commit)
    told = {} if entry is None else told_in(checkpoint, entry.progress)
    return source.lost_anew(start, end, told=[told.get(name, {})])


def only_copy(number: int) -> str:
    """Why no word has a batch taken out whose rows its source does not give again, now or ever, with the ways on."""
    return (
        "The table may have the only copy of these rows, and no rewind takes that out, not even with --allow-skip. "
        f"Rewind to {number} or later, which leaves them there; or have the source give them again, and type this "
        "again."
    )


def check_goes_on(
    drafting: Drafting,
    sources: Mapping[str, OpenSource],
    *,
    lane: str,
    to: int,
    position: Callable[[str], Offset | None],
    allow_skip: bool,
) -> None:
    """Check that the next run does not stop where the kept batch ended. A source may have all that the later batches
    read and not be able to tell that nothing is missing in between: they would be taken out, and nothing would come in
    their place until somebody looks why.

    :param sources: those of which the later batches have read ranges without a planned end, by their names.
    :param to: the batch of the lane that stays the newest; -1 for none.
    :param position: returns the position of a source once the lane has been rewound.
    :param allow_skip: rewind all the same; a note tells why the next run stops.
    :raises MaintenanceError: if it does.
    """
    where = f"where batch {lane}/{to} ended" if to >= 0 else "where its first batch began"
    for name, source in sources.items():
        reason = source.why_not_from(position(name))
        if reason is None:
            continue
        told = f"the next run would stop {where}: {reason}"
        if not allow_skip:
            raise MaintenanceError(
                f"{told} Nothing was done. Rewind less far, to a batch from whose end all is there; or have the later "
                "batches taken out and go on as that says: --allow-skip."
            )
        drafting.note(told)
