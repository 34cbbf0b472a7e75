"""The sensor's question: is there a batch to make? It agrees with the plan: what fires can be planned."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import BatchInProgressError, BrokenLogError
from airflow_provider_microbatch.execution.decide import should_construct_next_batch
from airflow_provider_microbatch.execution.guard import known_to_be_held
from airflow_provider_microbatch.execution.liveness import EngineOf, no_engine
from airflow_provider_microbatch.execution.plan import Planner
from airflow_provider_microbatch.execution.position import late_commit, read_position, render


@dataclass(frozen=True, kw_only=True)
class FireDecision:
    """A sensor's answer, with the reason for people.

    :param own: the work is a batch that the asking run has planned or made.
    :param of_interval: that batch is of a data interval, and a run that was not cleared reads what is new instead.
    :param complete: there is no work, and there will never be any: all sources are finished.
    """

    fire: bool
    reason: str
    own: bool = False
    of_interval: bool = False
    complete: bool = False


def should_fire(
    planner: Planner,
    run: RunIdentity | None = None,
    *,
    engine_of: EngineOf = no_engine,
    searched_ms: int | None = None,
) -> FireDecision:
    """The sensor's question: is there a batch to finish, or anything newer than the offset log? Writes nothing.

    A batch that another run is alive at does not fire: the operator behind the sensor would skip, and the next run's
    sensor would fire again, as fast as Airflow makes runs.

    :param planner: of the lane.
    :param run: the asking run; a run that has planned a batch already must reach its operator again.
    :param engine_of: asked whether an attempt whose lease has run out still runs. If the engine cannot be asked here,
        the sensor fires: the operator is on a host where it can, and only the operator can recover.
    :param searched_ms: when the run has asked before, milliseconds since the epoch. The answer was no, so no earlier
        batch is the run's own, and a look costs the same however long the log is.
    """
    checkpoint, lane = planner.checkpoint, planner.lane
    changed_by = checkpoint.maintenance.in_progress()
    if changed_by is not None:
        return FireDecision(fire=False, reason=f"the checkpoint is being changed by `microbatch {changed_by}`")
    planner.check_identity()
    try:
        position = read_position(lane)
    except BrokenLogError:
        late = late_commit(checkpoint, lane)
        if late is None:
            raise
        return FireDecision(fire=True, reason=f"batch {late[0]} was rewound and committed after that: a run mends it")
    if searched_ms is None:  # it may read an entry of each lane; no plan is made without this check
        planner.check_names(position.latest.ends if position.latest else {})
    if position.planned is not None:
        by_another = known_to_be_held(checkpoint, BatchKey(lane.name, position.batch_id), run, engine_of)
        if by_another is None:
            reason, own = f"batch {position.batch_id} is planned and not committed", planner.own
            return FireDecision(fire=True, reason=reason, own=run is not None and own.has_planned(run, position))
    if run is not None:
        made = planner.own.of(run, position, newest_only=planner.own.was_searched(searched_ms))
        if made:
            return FireDecision(fire=True, reason=f"this run planned batch {made[-1]}", own=True)
    if position.planned is not None:
        return FireDecision(fire=False, reason=str(by_another))
    try:
        position = planner.standing(position, by_record=True)
    except BatchInProgressError as busy:
        return FireDecision(fire=False, reason=str(busy))
    ahead = planner.sources.with_new(position.committed)
    if should_construct_next_batch(
        is_new_data_available=bool(ahead),
        last_commit=position.last_commit,
        no_data_batches=planner.pipeline.no_data_batches,
    ):
        reason = f"new data in {', '.join(ahead)}" if ahead else "the last batch asked for another one"
        return FireDecision(fire=True, reason=reason)
    complete = planner.complete(position)
    if complete is not None:
        return FireDecision(fire=False, reason=complete, complete=True)
    return FireDecision(fire=False, reason=f"nothing after {render(position.committed)}")
