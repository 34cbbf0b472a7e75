"""Withdraw a clear that no run will answer: the cleared run has been deleted since."""

from __future__ import annotations

from contextlib import suppress

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.records import encode_record
from airflow_provider_microbatch.checkpoint.replays import withdrawn
from airflow_provider_microbatch.exceptions import MaintenanceError, MicroBatchError
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.site import Recorded
from airflow_provider_microbatch.upkeep.commands.steps import End


def plan_withdraw_clear(drafting: Drafting, key: BatchKey) -> Plan:
    """The plan after which no replay of the batch is awaited: its output stays as it is.

    :raises MaintenanceError: if the batch is not committed.
    """
    checkpoint = drafting.checkpoint
    commit = checkpoint.lane(key.lane).commit_of(key.id)
    if commit is None:
        raise MaintenanceError(f"batch {key} of {checkpoint.location} is not committed: no clear of it waits.")
    waiting = checkpoint.replays.pending(key)
    if not waiting:
        drafting.note(f"no clear of batch {key} waits for an answer.")
    behind = {other.epoch: other for request in waiting for other in checkpoint.replays.behind(key, request.epoch)}
    for request in [*behind.values(), *waiting]:
        by = "nobody" if request.run is None else f"run {request.run.run_id!r} of DAG {request.run.dag_id!r}"
        why = f"{by} asked for the batch again, and does not wait any more"
        end = withdrawn(f"microbatch {drafting.command}, by {drafting.by}")
        drafting.step(End(path=f"replays/{key}/{request.epoch}.end", text=encode_record(end).decode(), why=why))
    with suppress(MicroBatchError):  # a clear can be withdrawn without the table
        recorded = Recorded(checkpoint)
        found = recorded.published(key) if waiting else None
        if found is not None and not recorded.is_of_one_attempt(found):
            drafting.note(
                f"{found.sink.location()} have batch {key} of two attempts, since the replay was cut off between them: "
                "they stay so, unless its stage is there and the janitor finishes it. `microbatch check` names them."
            )
    if commit.set_aside:
        drafting.note(f"batch {key} is set aside: a clear of its task is still what brings its rows.")
    return drafting.plan()
