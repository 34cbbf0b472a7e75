"""Start behind: a checkpoint counts on behind the batches that the table holds, so that its batches never meet another
checkpoint's."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import MaintenanceError
from airflow_provider_microbatch.execution.position import read_position
from airflow_provider_microbatch.sinks.manifest import counted_over
from airflow_provider_microbatch.upkeep.commands.count_over import check_counted, count_over
from airflow_provider_microbatch.upkeep.commands.encoding import entry_by_hand
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.site import Recorded
from airflow_provider_microbatch.upkeep.commands.stateless import check_stateless
from airflow_provider_microbatch.upkeep.commands.staying import kept_in, told_of


def plan_start_behind(drafting: Drafting, *, allow_reread: bool) -> Plan:
    """The plan after which the next batch of the live lane has a number under which the table has nothing. The batches
    in between read nothing and record that, as those of ``set-offset`` do.

    :param allow_reread: accept that data is read again that was read by batches of this checkpoint after the backup it
        was restored from, or by batches of another checkpoint while it lay here.
    :raises MaintenanceError: if the table is unknown, a batch is planned, or rows would be doubled without permission.
    :raises SinkError: if the table cannot tell which batches it holds.
    """
    checkpoint = drafting.checkpoint
    identity = checkpoint.identity()
    if identity is None or identity.pipeline is None:
        raise MaintenanceError(f"{checkpoint.location} is no pipeline's yet. Let the pipeline run once.")
    position = read_position(checkpoint.lane(LIVE))
    if position.planned is not None:
        raise MaintenanceError(
            f"batch {position.batch_id} is planned and not committed. Let the pipeline finish it, or "
            f"`microbatch rewind {quote(checkpoint.location)} --to {position.batch_id - 1}` first."
        )
    recorded = Recorded(checkpoint)
    check_stateless(checkpoint, recorded)
    recorded.sinks()  # raises unless all sinks can be asked
    held = [number for number in recorded.batches(LIVE) if number >= position.batch_id]
    if not held:
        return drafting.plan()
    # A log that begins here begins at the first held number: the numbers before it need not be counted.
    counted = held if position.latest is None else [position.batch_id - 1, *held]
    check_counted(recorded, checkpoint.tables, counted, LIVE)
    _check_reread(drafting, recorded, held, allow_reread=allow_reread)
    drafting.note(
        f"the table holds batches up to {held[-1]}; the next one here is {held[-1] + 1}. Whoever else goes on writing "
        "there comes to that number too: then this pipeline needs a table of its own."
    )
    drafting.note("it reads all that its sources have after its own position, whether or not it is in the table.")
    entry = entry_by_hand(drafting, position, sources=identity.sources)
    # A log that begins here needs only one entry before: every run verifies just the newest two entries.
    first = position.batch_id if position.latest is not None else max(held[-1] - 1, 0)
    count_over(drafting, LIVE, position, entry, range(first, held[-1] + 1))
    return drafting.plan()


def _check_reread(drafting: Drafting, recorded: Recorded, held: Sequence[int], *, allow_reread: bool) -> None:
    keys = [BatchKey(LIVE, number) for number in held]
    _check_reread_of_another(drafting, recorded, keys, allow_reread=allow_reread)
    found = {key.id: lives for key in keys if (lives := recorded.of_another_life(key))}
    if not found:
        return
    own = sorted(found)
    staying = kept_in(found)
    if staying and not allow_reread:
        raise MaintenanceError(told_of(drafting.checkpoint, staying, lane=LIVE))
    if staying:
        drafting.note(f"{counted_over(drafting.checkpoint.location, LIVE)}.")
    if not allow_reread:
        raise MaintenanceError(
            f"batches {own[0]} to {own[-1]} in the table are this checkpoint's own, of after the backup that it was "
            "restored from. What they read would be read again, and be in the table twice. "
            f"`microbatch rewind {quote(drafting.checkpoint.location)} --to {own[0] - 1} --drop-output` takes them out "
            "first; else allow it with --allow-reread."
        )
    drafting.note(f"what batches {own[0]} to {own[-1]} read is read again, as far as it is still there.")
    letters = [number for number, lives in found.items() if any(one.manifest.dead_letters for one in lives)]
    if letters:
        drafting.note(
            f"batches {', '.join(map(str, letters))} have dead letters, which stay in their table: `microbatch "
            "dead-letters` knows none of a batch that is counted over, and runs none again. Where what was read is not "
            "read again, land their records once more."
        )


def _check_reread_of_another(
    drafting: Drafting, recorded: Recorded, keys: Sequence[BatchKey], *, allow_reread: bool
) -> None:
    """Check for batches of another checkpoint at this place: if a pipeline's checkpoint was moved or removed, the
    pipeline begins a new checkpoint at the old place, and that checkpoint has read nothing."""
    others = ((key.id, recorded.of_another_here(key)) for key in keys)
    found = [(number, one.manifest.identity) for number, one in others if one is not None]
    if not found:
        return
    (first, _), (last, made) = found[0], found[-1]
    if not allow_reread:
        raise MaintenanceError(
            f"batches {first} to {last} in the table were published by {made}: from here, by another checkpoint than "
            "is here now. What they read would be read again, as far as the sources still have it, and be in the table "
            "twice. If that checkpoint was moved, put it back, or name its place of now as checkpoint=… in the DAG. If "
            "the sources have nothing of it any more, or it is wanted twice: --allow-reread."
        )
    drafting.note(f"what batches {first} to {last} read is read again, as far as it is still there.")
