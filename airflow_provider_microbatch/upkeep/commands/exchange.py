"""Export and import: copies of a checkpoint from which a streaming query, or a pipeline, goes on."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.handover import hand_over
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey, check_name
from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.checkpoint.records import encode_record
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import ForeignCheckpointError, MaintenanceError, MicroBatchError
from airflow_provider_microbatch.execution.left import find_left
from airflow_provider_microbatch.execution.liveness import no_engine
from airflow_provider_microbatch.execution.position import read_position
from airflow_provider_microbatch.execution.set_aside import all_aside
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.upkeep.commands.alive import alive
from airflow_provider_microbatch.upkeep.commands.copying import Copy
from airflow_provider_microbatch.upkeep.commands.draft import Draft
from airflow_provider_microbatch.upkeep.commands.exchange_state import state_for_pipeline, state_for_query
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.site import Recorded
from airflow_provider_microbatch.upkeep.source_check import find_without_batch

_IDENTITY = "microbatch/identity"


def plan_export(drafting: Drafting, *, target: str, allow_skip: bool = False) -> Plan:
    """The plan that makes ``target`` a checkpoint from which a streaming query goes on exactly.

    :param target: location of the copy.
    :param allow_skip: accept that the ranges of batches that are set aside, and what another lane has taken and not
        committed, are lost: no query reads them.
    :raises CheckpointError: if the checkpoint is broken, Spark would not take it, or ``target`` is not empty.
    """
    checkpoint = drafting.checkpoint
    _check_sound(checkpoint)
    place = open_store(target)
    _check_empty(place, drafting)
    if place.for_spark is None:
        raise MaintenanceError(
            f"Spark cannot open {place.location}, so no streaming query could go on from there. Name a folder, as an "
            "absolute path."
        )
    _check_aside(drafting, allow_skip=allow_skip)
    _check_left(drafting, allow_skip=allow_skip)
    hand_over(Checkpoint(Draft(drafting.store), sources=drafting.sources))  # tried out, so that a refusal comes now
    position = read_position(checkpoint.lane(LIVE))
    if position.planned is not None:
        _check_unpublished(checkpoint, position.batch_id)
        drafting.note(f"batch {position.batch_id} is planned and not committed: the query runs it first.")
    identity = checkpoint.identity()
    assert identity is not None, "it has batches"
    assert position.latest is not None, "it has batches"
    state = state_for_query(drafting, position, place=place.for_spark)
    drafting.elsewhere(
        Copy(
            source=checkpoint.location,
            target=target,
            sources=identity.sources,
            hand_over=True,
            why=f"for a streaming query, format {identity.format}",
            changed=state.changed,
            again=state.again,
        )
    )
    drafting.note(f"the query's checkpointLocation is {place.for_spark}.")
    drafting.note("pause the DAG for good before the query starts: each would read what the other has read.")
    if identity.format == "v1":
        drafting.note(f"the query has to make its sources in this order: {', '.join(identity.sources)}.")
    else:
        drafting.note(
            "the query needs Spark 4.2 or newer, spark.sql.streaming.queryEvolution.enableSourceEvolution=true, and "
            f"sources of these names: {', '.join(position.latest.ends)}."
        )
    return drafting.plan()


def plan_import(drafting: Drafting, *, source: str, pipeline: str) -> Plan:
    """The plan that makes the drafted location, which is still empty, the checkpoint of ``pipeline``.

    :param source: location of a streaming query's checkpoint, or of an export; only read.
    :param pipeline: name of the pipeline that goes on from the copy.
    :raises CheckpointError: if the source is broken, belongs to another pipeline, or keeps state that no pipeline can
        go on from.
    """
    check_name(pipeline, what="pipeline")
    store = open_store(source)
    origin = Checkpoint(store, sources=drafting.sources)
    _check_sound(origin)
    busy = alive(origin, no_engine)
    if busy:
        raise MaintenanceError(f"{source} is in use: {'; '.join(busy)}. Pause its DAG first. Nothing was done.")
    origin.maintenance.check_none()
    identity = origin.identity()
    position = read_position(origin.lane(LIVE))
    if identity is None or position.latest is None:
        raise MaintenanceError(f"{source} has no batch yet: there is nothing to go on from.")
    if identity.pipeline not in (None, pipeline):
        raise ForeignCheckpointError(
            f"{source} belongs to pipeline {identity.pipeline!r}, not to {pipeline!r}. Import it under its own name."
        )
    state = state_for_pipeline(drafting, origin, position)
    _check_empty(drafting.store, drafting)
    drafting.elsewhere(
        Copy(
            source=source,
            target=drafting.store.location,
            sources=(),
            hand_over=False,
            why=f"{source} stays as it is",
            changed=state.changed,
        )
    )
    if identity.pipeline is None:
        values = {"pipeline": pipeline, "format": identity.format, "sources": list(position.latest.ends)}
        drafting.write(_IDENTITY, encode_record(values), f"it is pipeline {pipeline!r}'s from now on")
        drafting.note("stop the streaming query for good: each would read what the other has read.")
    if state.conversion is not None:
        drafting.elsewhere(state.conversion)  # behind the copy, and the names of its sources
    if position.planned is not None:
        drafting.note(f"batch {position.batch_id} is planned and not committed: the pipeline runs it first.")
    drafting.note(f"pipeline {pipeline!r} has to name its sources: {', '.join(position.latest.ends)}.")
    return drafting.plan()


def _check_sound(checkpoint: Checkpoint) -> None:
    findings = verify_all(checkpoint)
    if findings:
        raise MaintenanceError(
            f"{checkpoint.location} is broken: {findings[0].message} `microbatch check` lists all {len(findings)} "
            "findings; mend them first. Nothing was done."
        )


def _check_aside(drafting: Drafting, *, allow_skip: bool) -> None:
    """Check that no batch is set aside, or that skipping is allowed: a query takes a batch that is set aside for
    done."""
    checkpoint = drafting.checkpoint
    aside = [f"{lane}/{number}" for lane in checkpoint.lanes() for number in all_aside(checkpoint, lane)]
    if not aside:
        return
    if not allow_skip:
        raise MaintenanceError(
            f"batches {', '.join(aside)} are set aside: their ranges are in no table, and the query would not read "
            "them either. Clear their tasks first, which runs them; or allow it with --allow-skip. Nothing was done."
        )
    drafting.note(f"lost to the table: the ranges of {', '.join(aside)}, which are set aside.")


def _check_left(drafting: Drafting, *, allow_skip: bool) -> None:
    """Check that no lane but the live one has taken what is in no batch that is committed, or that skipping is allowed:
    the query goes on behind it, by the source's log, and knows no other lane that would read it."""
    left = find_left(drafting.checkpoint, parked=False) + find_without_batch(drafting.checkpoint)
    if left and not allow_skip:
        more = f" `microbatch check` lists all {len(left)}." if len(left) > 1 else ""
        raise MaintenanceError(
            f"{left[0].message} Neither would the query. {left[0].repair}{more} Then export; or allow it with "
            "--allow-skip. Nothing was done."
        )
    for finding in left:
        drafting.note(f"lost to the table, unless it has come there: {finding.message}")


def _check_empty(store: Store, drafting: Drafting) -> None:
    """Check that nothing is where the copy goes. A command that was killed after its last step, or whose answer was
    lost, is typed again: its own copy is there, and whoever named another folder then would have two."""
    there = [name for name in store.list("") if name != "maintenance"]
    if not there:
        return
    told = f"{store.location} is not empty: it has {', '.join(sorted(there)[:5])}."
    done = drafting.checkpoint.maintenance.applied(drafting.command)
    committed = max(numbers(store.list("commits")), default=None)
    if done is not None and committed == drafting.checkpoint.commit_log.latest_id():  # else of what was before
        raise MaintenanceError(
            f"{told} `microbatch {done.command}` (by {done.by}) was done there to its end, and need not be typed "
            "again. For another copy name a folder that is not there."
        )
    raise MaintenanceError(f"{told} Name a folder that is not there.")


def _check_unpublished(checkpoint: Checkpoint, number: int) -> None:
    """Check that a planned and uncommitted batch is not in the table: Spark would run it again. A table that cannot be
    asked may have it."""
    if not checkpoint.definitions.names():
        return  # no pipeline has made a batch here
    try:
        found = Recorded(checkpoint).everywhere(BatchKey(LIVE, number))
    except MicroBatchError as error:
        raise MaintenanceError(
            f"batch {number} is planned and not committed, and whether it is in the table cannot be told from here: "
            f"{error} If it is, the query would run it a second time. Mend that, or run the pipeline once, which "
            "commits the batch. Then export."
        ) from error
    if found:
        raise MaintenanceError(
            f"batch {number} is in the table and its commit entry is missing, so the query would run it a second time. "
            "Run the pipeline once: it only commits. Then export."
        )
