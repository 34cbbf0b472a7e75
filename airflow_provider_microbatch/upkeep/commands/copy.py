"""Copy: a checkpoint moves to another place, of any kind, and the pipeline goes on there."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.places import Move
from airflow_provider_microbatch.exceptions import MaintenanceError
from airflow_provider_microbatch.execution.liveness import EngineOf
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.upkeep.commands.alive import alive
from airflow_provider_microbatch.upkeep.commands.moving import CopyTo, Leave, Open, is_open
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.repair_epochs import fence_ahead
from airflow_provider_microbatch.upkeep.commands.stateless import check_no_state


def plan_copy(drafting: Drafting, *, target: str) -> Plan:
    """The plan that moves the checkpoint to ``target``. Its id moves along, so its batches in tables stay its own.

    :param target: location of the new place.
    :raises CheckpointError: if there is nothing to move, if ``target`` is not empty, or if one place lies in the other.
    """
    checkpoint, place = drafting.checkpoint, open_store(target)
    here, there = checkpoint.location, place.location
    if here == there or _is_within(here, there) or _is_within(there, here):
        raise MaintenanceError(f"{there} and {here} are not apart: one would lie in the other. Name another place.")
    # A folder of the same name by another connection is none of the same place, as it has nothing in it: see below.
    if _is_within(place.place, open_store(here).place):
        raise MaintenanceError(
            f"{there} and {here} are not apart: where both connections lead to one place, it would lie in the other. "
            "Name another folder."
        )
    identity = checkpoint.identity()
    if identity is None:
        raise MaintenanceError(f"{here} has no 'metadata', so it has no id to move along: nothing ever ran there.")
    check_no_state(checkpoint)
    found = place.list("")
    if found:
        left = Checkpoint(place).maintenance.places.arriving()
        if left is not None and left.source == here:
            raise MaintenanceError(
                f"{there} has what {left} had copied when it was given up. Remove all that is there, and type this "
                "again; or name another place."
            )
        raise MaintenanceError(
            f"{there} is not empty: it has {', '.join(sorted(found)[:5])}. Name a place where nothing is."
        )
    unfit = place.unfit()
    if unfit is not None:
        raise MaintenanceError(f"nothing is copied: {unfit}")
    # A process that has slept since before its lease ran out asks the old place whether it may publish.
    attempts = checkpoint.attempts.epochs
    for key in sorted({key for key, _ in checkpoint.leases.unfinished()}):
        if attempts.all(key):
            fence_ahead(drafting, BatchKey(key.lane, key.id), why="its process may sleep, and know the old place alone")
    values = {
        "source": here,
        "target": target,
        "checkpoint": identity.query_id,
        "by": drafting.by,
        "at_ms": drafting.at_ms,
    }
    drafting.elsewhere(CopyTo(**values, why="entry by entry, each looked at again"))  # type: ignore[arg-type]
    drafting.elsewhere(Leave(**values, why="nobody goes on here"))  # type: ignore[arg-type]
    drafting.elsewhere(Open(**values, why="the pipeline goes on there"))  # type: ignore[arg-type]
    drafting.note(f"pause the DAG, and give the pipeline checkpoint={target!r} before you unpause it.")
    if place.for_spark is None and open_store(here).for_spark is not None:
        drafting.note(
            "Spark cannot open the new place: to hand the checkpoint to a streaming query, copy it back first."
        )
    return drafting.plan()


def _is_within(place: str, other: str) -> bool:
    return place.startswith(f"{other}/")


def is_done(move: Move) -> bool:
    """Whether the new place of a checkpoint that has left is open."""
    return is_open(open_store(move.target))


def go_on(store: Store, move: Move, *, engine_of: EngineOf) -> None:
    """Finish a move whose command was given up at the moment at which the checkpoint left. No run begins at the old
    place any more, so the move needs no command there.

    :raises MaintenanceError: if an attempt is still alive.
    """
    busy = alive(Checkpoint(store), engine_of)
    if busy:
        raise MaintenanceError(f"{store.location} is in use: {'; '.join(busy)}. Wait until that has ended.")
    values = {**vars(move), "why": ""}
    CopyTo(**values).apply(store, is_over=_never)
    Open(**values).apply(store, is_over=_never)


def _never() -> bool:
    return False
