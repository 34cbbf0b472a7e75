"""What a rewind takes out of a table and nobody can read again, where the checkpoint was restored from a backup: no log
tells what the batches of after the backup have read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from shlex import quote

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LETTERS, LIVE
from airflow_provider_microbatch.exceptions import CheckpointError, DefinitionError, MaintenanceError, SourceError
from airflow_provider_microbatch.sources import OpenSource, Source
from airflow_provider_microbatch.upkeep.commands.plan import Drafting
from airflow_provider_microbatch.upkeep.commands.site import Recorded


def check_given_up(
    drafting: Drafting,
    recorded: Recorded,
    *,
    lane: str,
    to: Callable[[str], Offset | None],
    newest: Callable[[str], Offset | None],
    lost: Sequence[int],
    allow_skip: bool,
) -> None:
    """Check that the lost batches can be read again: data that a source has given up, or that is gone behind the
    position from which plans go on, cannot be. A source's notes beside the files tell what it has given up, except for
    data that was taken by a version that left no notes. Letters come out of their table, which gives up nothing.

    :param lane: of the batches.
    :param to: returns the position of a source once the lane has been rewound.
    :param newest: returns the position of a source up to which the log's batches have read.
    :param lost: numbers of batches that only a table has.
    :param allow_skip: lose what is gone; a note names it.
    :raises MaintenanceError: if their rows may be nowhere but in the table.
    """
    sources = {} if lane == LETTERS else recorded.arguments().get("sources", {})
    problems = [
        f"source {name}, which gives up what is committed"
        for name, values in sources.items()
        if Source.from_dict(values).gives_up
    ]
    # All sources: the definition on record is of the backup too, and may be older than clean_source.
    for name in map(drafting.checkpoint.names.of, sources):
        source = recorded.source(name, lane=lane)
        why = None if source is None else source.forgotten()
        if why is not None:
            raise MaintenanceError(f"source {name!r}: {why}")
        if source is not None and lane == LIVE:  # what an interval reads is not told by a position
            problems += filter(None, [_gone(source, to(name), newest=newest(name))])
    if not problems:
        return
    numbers, told = ", ".join(map(str, lost)), "; ".join(problems).rstrip(".")
    if not allow_skip:
        raise MaintenanceError(
            f"batches {numbers} in the table are of after the backup that this checkpoint was restored from, and their "
            f"rows may be nowhere else: {told}. Look that what they read is there, and put back what is not; then "
            "--allow-skip says so, and loses what is not there. Or keep them: "
            f"`microbatch start-behind {quote(drafting.store.location)} --allow-reread`."
        )
    drafting.note(f"lost to the table: what is not there any more of what batches {numbers} read: {told}.")


def _gone(source: OpenSource, position: Offset | None, *, newest: Offset | None) -> str | None:
    """What is gone, or why that cannot be looked for; None also where the source's own log is damaged: that the rewind
    cuts it off, and what may be lost by that, is told where it is looked through, with the way on."""
    if next(iter(source.damaged(newest)), None) is not None:
        return None
    try:
        return source.gone_since(position)
    except (SourceError, CheckpointError, DefinitionError) as error:
        return str(error)
