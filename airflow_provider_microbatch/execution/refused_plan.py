"""Whether the plan of a lane that was refused last still tells by which definition the next batch will be planned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_microbatch.checkpoint.by_hand import is_position
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.refused_plans import RefusedPlan


def record_refused(checkpoint: Checkpoint, key: BatchKey, definition: Mapping[str, Any]) -> None:
    """Record that a plan was refused, with its definition; durable on return.

    :param key: the batch that would have been planned. Where there is no checkpoint yet, nothing is recorded: no
        command goes on there.
    :param definition: values of the pipeline that planned, as ``Pipeline.to_dict`` has them.
    :raises CheckpointError: if the store cannot be reached, or the entry before cannot be read.
    """
    lane = checkpoint.lane(key.lane)
    after = lane.plan_digest(key.id - 1) if key.id > 0 else ""
    if after is None or checkpoint.identity() is None:
        return
    plan = RefusedPlan(
        definition=checkpoint.definitions.put(definition),
        next=key.id,
        after=after,
        epoch=checkpoint.attempts.latest_epoch(key),
    )
    checkpoint.refused_plans.put(key.lane, plan)


def refused_plan(checkpoint: Checkpoint, lane: str) -> RefusedPlan | None:
    """The plan of the lane that was refused last, if no batch has been planned since and its definition is there; else
    None. A position that was set by hand is no plan: the command may be given once more.

    :raises CorruptEntryError: if the record, its definition, or a newest entry of the offset log cannot be read.
    """
    refused, log = checkpoint.refused_plans.get(lane), checkpoint.lane(lane).offset_log
    if refused is None:
        return None
    last = log.latest_id()
    newest = -1 if last is None else last
    for number in range(newest, refused.next - 1, -1):
        entry = log.get(number)
        if entry is None or not is_position(entry):
            return None
    before = "" if refused.next == 0 else checkpoint.lane(lane).plan_digest(refused.next - 1)
    if before != refused.after:
        return None  # rewound since, or another life of the checkpoint
    # A batch that was planned since may have been rewound: its attempts stay.
    if checkpoint.attempts.latest_epoch(BatchKey(lane, refused.next)) != refused.epoch:
        return None
    if newest >= refused.next and checkpoint.attempts.latest_epoch(BatchKey(lane, newest + 1)):
        return None
    return None if checkpoint.definitions.get(refused.definition) is None else refused
