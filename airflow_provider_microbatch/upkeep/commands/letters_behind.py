"""Start behind, of dead letters: their lane counts on behind the batches that a table has for good and no log knows."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import SKEW_MS
from airflow_provider_microbatch.checkpoint.key import LETTERS, BatchKey
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.exceptions import MaintenanceError
from airflow_provider_microbatch.execution.letters_taken import SOURCE, offset_of, replay_command, taken
from airflow_provider_microbatch.execution.position import read_position
from airflow_provider_microbatch.execution.summary import summaries
from airflow_provider_microbatch.upkeep.commands.count_over import check_counted, count_over
from airflow_provider_microbatch.upkeep.commands.encoding import entry_by_hand
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.site import Published, Recorded
from airflow_provider_microbatch.upkeep.commands.staying import taken_out


def plan_letters_behind(drafting: Drafting, *, allow_skip: bool) -> Plan:
    """The plan after which the next batch of dead letters has a number under which no table has anything, and all
    letters that the batches which are counted over may have count as run again: nobody can tell which they have.

    :param allow_skip: accept that letters are among them that were never run again.
    :raises MaintenanceError: if a batch of the lane is planned, if all that is there can be taken out, or if letters
        would be passed over without permission.
    :raises SinkError: if a table cannot tell which batches it holds.
    """
    checkpoint = drafting.checkpoint
    lane = checkpoint.lane(LETTERS)
    position = read_position(lane)
    if position.planned is not None:
        raise MaintenanceError(
            f"batch {BatchKey(LETTERS, position.batch_id)} is planned and not committed. Finish it: "
            f"{replay_command(checkpoint)}. Or give it up first: "
            f"{command(lane, f'rewind --to {position.batch_id - 1}')}."
        )
    recorded = Recorded(checkpoint)
    recorded.sinks()  # raises unless all sinks can be asked
    held = [number for number in recorded.batches(LETTERS) if number >= position.batch_id]
    if not held:
        return drafting.plan()
    check_counted(recorded, checkpoint.tables, [position.batch_id - 1, *held], LETTERS)
    found = {number: recorded.of_another_life(BatchKey(LETTERS, number)) for number in held}
    if taken_out(found, lane=LETTERS):
        raise MaintenanceError(
            f"tables have batches of lane {LETTERS} that no log knows, and all of them can be taken out: "
            f"{command(lane, f'rewind --to {position.batch_id - 1} --drop-output')}. Their dead letters are run again "
            "after that, and none has to count as run again."
        )
    lives = [one for number in held for one in found[number]]
    letters = _that_may_be_in(checkpoint, recorded, lives)
    shown = ", ".join(map(str, letters))
    if letters and not allow_skip:
        raise MaintenanceError(
            f"dead letters of batch {shown} may be in {' and '.join(sorted({one.sink.location() for one in lives}))} "
            "by a batch that no log knows. Nobody can tell whose it has, so none of them is run again once its number "
            "is counted over, and none of these batches is replayed. They stay where they are, and `microbatch "
            f"dead-letters {quote(checkpoint.location)}` counts them. Allow that with --allow-skip."
        )
    if letters:
        drafting.note(f"dead letters of batch {shown} count as run again from now on, also those that never were.")
    entry = entry_by_hand(drafting, position, sources=(SOURCE,), ends={SOURCE: offset_of(letters)})
    count_over(drafting, LETTERS, position, entry, range(position.batch_id, held[-1] + 1))
    return drafting.plan()


def _that_may_be_in(checkpoint: Checkpoint, recorded: Recorded, lives: Sequence[Published]) -> list[BatchKey]:
    """Batches whose letters, not run again as far as the log knows, may be in one that no log knows: not those of a
    batch that was planned after all of these. Asks the tables, since the log is of the backup's moment: a batch that it
    has as planned, as set aside or without letters may have been published with some after that."""
    planned = [one.manifest.identity.planned_ms for one in lives if one.manifest.identity is not None]
    if not planned:
        return []
    by, last_ms = taken(checkpoint), max(planned) + SKEW_MS
    batches = (batch for lane in checkpoint.lanes() for batch in summaries(checkpoint, lane=lane))
    left = (batch for batch in batches if batch.key not in by)
    before = (batch for batch in left if batch.planned_ms <= last_ms or 0 in planned)  # 0: it does not tell when
    return [batch.key for batch in before if batch.dead_letters or _has_letters(recorded, batch.key)]


def _has_letters(recorded: Recorded, key: BatchKey) -> bool:
    """Whether the batch in any table was published with dead letters."""
    return any(one.manifest.dead_letters for one in recorded.everywhere(key))
