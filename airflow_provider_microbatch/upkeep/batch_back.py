"""How a batch that is not in its table comes back there, in words."""

from __future__ import annotations

from contextlib import suppress

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LETTERS, LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.exceptions import CheckpointError, SinkError
from airflow_provider_microbatch.execution.letters_taken import replay_command
from airflow_provider_microbatch.execution.told_state import has_left_state
from airflow_provider_microbatch.upkeep.commands.for_good import InForce
from airflow_provider_microbatch.upkeep.commands.site import Recorded
from airflow_provider_microbatch.upkeep.commands.state_behind import goes_on_behind


def batch_back(checkpoint: Checkpoint, recorded: Recorded, key: BatchKey) -> str:
    lane = checkpoint.lane(key.lane)
    entry = lane.offset_log.get(key.id)
    run, commit = entry.run if entry is not None else None, lane.commit_log.get(key.id)
    can_be_rewound = lane.can_be_rewound_to(key.id - 1) and not _is_in_the_way(checkpoint, recorded, key)
    rewind = command(lane, f"rewind --to {key.id - 1} --drop-output")
    restored = "bring the table, or this batch of it, back from a backup that has it."
    if key.lane == LETTERS:  # whom no task of Airflow's has run
        if not can_be_rewound:
            return restored.capitalize()
        return (
            f"{rewind}, then {replay_command(checkpoint)}: that runs the dead letters of it, and of what came after "
            f"it, again. Or {restored}"
        )
    if commit is not None and key.lane == LIVE and has_left_state(commit) and key.id != lane.commit_log.latest_id():
        # Later batches have gone on from its state, so that no clear of it is accepted.
        if not can_be_rewound:
            return restored.capitalize()
        return f"{rewind} runs it and all after it again. If a source cannot be read again, {restored}"
    clear = f"Clear {run.in_words}" if run else "Clear its task"
    if run is not None and commit is not None and commit.run is not None and commit.run.task_id != run.task_id:
        clear += ' with all that comes after it ("Downstream")'  # of the steps only the first has planned it
    again = (
        f"If its run is gone, or the clear is refused, {rewind} runs it and all after it again. If"
        if can_be_rewound
        else "If its run is gone, or the clear is refused, or"
    )
    return (
        f"{clear}: that reads its recorded range again and puts the batch back, whatever came after it. {again} a "
        f"source cannot be read again, {restored}"
    )


def _is_in_the_way(checkpoint: Checkpoint, recorded: Recorded, key: BatchKey) -> bool:
    """Whether a rewind over the batch is refused: it stays in a table, or went to a table of the pipeline's and to one
    that it names no more, or nobody can tell what the pipeline names, or the state of the batch before is gone. A later
    batch that is in the way tells so itself, since a look at all of them by each finding is dear."""
    try:
        in_force = InForce(checkpoint, recorded, key.lane)
    except CheckpointError:
        return True
    with suppress(CheckpointError):
        if in_force.beside(key):
            return True
    with suppress(CheckpointError):
        if not goes_on_behind(checkpoint, recorded, lane=key.lane, to=key.id - 1):
            return True
    with suppress(SinkError, CheckpointError):
        return any(not one.sink.definition.can_withdraw for one in recorded.everywhere(key))
    return False
