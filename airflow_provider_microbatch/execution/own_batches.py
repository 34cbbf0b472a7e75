"""The batches of a run: those that it has planned, or brought to their commit.

For a run with a data interval, the batches of earlier runs of its partition are its own too.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from datetime import datetime

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint, Lane
from airflow_provider_microbatch.checkpoint.entries import SKEW_MS, RunIdentity
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey, span_of
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.execution.intervals import batch_of
from airflow_provider_microbatch.execution.position import Position
from airflow_provider_microbatch.sources.intervals import Interval

log = logging.getLogger(__name__)

_DAY_MS = 24 * 60 * 60 * 1000


class OwnBatches:
    """The runs that the batches of one lane belong to, by the lane's logs.

    :param checkpoint: the checkpoint.
    :param lane: the lane.
    """

    def __init__(self, *, checkpoint: Checkpoint, lane: Lane) -> None:
        self._checkpoint = checkpoint
        self._lane = lane

    def was_searched(self, searched_ms: int | None) -> bool:
        """Whether the result of a search at that time still stands: no command has changed the log since."""
        if searched_ms is None:
            return False
        changed_ms = self._checkpoint.maintenance.changed_ms()
        # Within the skew a log counts as changed; that costs one search.
        return changed_ms is None or changed_ms < searched_ms - SKEW_MS

    def of(self, run: RunIdentity, position: Position, *, newest_only: bool = False) -> list[int]:
        """Ids of the committed batches that ``run`` planned or brought to their commit, ascending.

        A retry follows its batch at once, so only the newest batch can be its own. A cleared run may have any batch,
        and several: the log is searched back to where the run began, at the cost of clears alone.
        """
        newest = position.batch_id - 1
        if newest < 0:
            return []
        if newest_only or not run.was_cleared:
            return [newest] if self._is_own(run, newest) else []
        began_ms = ms_of(run.run_after)  # by another host's clock: a day is far more than these differ
        found = []
        for batch_id in reversed(self._lane.commit_log.ids()):
            commit = self._lane.commit_log.get(batch_id)
            if commit is not None and (commit.committed_ms or began_ms) < began_ms - _DAY_MS:
                break
            if self._is_own(run, batch_id):
                found.append(batch_id)
        return found[::-1]

    def before(self, run: RunIdentity, position: Position) -> list[int]:
        """The run's batches before the one that the run is :meth:`assigned`."""
        assigned = self.assigned(run, position)
        return [batch_id for batch_id in self.of(run, position) if batch_id != assigned]

    def assigned(self, run: RunIdentity, position: Position) -> int | None:
        """Id of the batch that ``run`` has to work on before anything new: the newest of its own, else the one that is
        planned and not committed; None if there is neither."""
        if self.has_planned(run, position):
            return position.batch_id
        own = self.of(run, position)
        return own[-1] if own else position.batch_id if position.planned else None

    def has_planned(self, run: RunIdentity, position: Position) -> bool:
        """Whether the batch that is planned and not committed is the run's."""
        planned_by = position.planned.run if position.planned else None
        return planned_by is not None and run.is_of(planned_by)

    def _is_own(self, run: RunIdentity, batch_id: int) -> bool:
        return any(run.is_of(by) for by in runs_of(self._lane, batch_id))


def runs_of(lane: Lane, batch_id: int) -> Iterator[RunIdentity]:
    """The run that planned the batch, and the run that brought it to its commit, as far as they are on record."""
    for entry in (lane.offset_log.get(batch_id), lane.commit_log.get(batch_id)):
        if entry is not None and entry.run is not None:
            yield entry.run


def own_of_interval(
    checkpoint: Checkpoint, run: RunIdentity, key: BatchKey, *, newest_only: bool = False
) -> list[BatchKey]:
    """Batches that a run with a data interval, or an earlier run of its partition, planned or brought to its commit.

    :param key: the batch of the interval's own lane; the other batches are those of the live lane.
    """
    ids = checkpoint.offset_log.ids()
    # A run that was never cleared can have planned a live batch only in a try just before, see OwnBatches.of; a
    # partition has another run each time.
    may_be_old = run.partition_date is not None or run.was_cleared
    recent = ids if may_be_old and not newest_only else ids[-2:]
    return [
        one
        for one in (*(BatchKey(LIVE, number) for number in recent), key)
        if any(_is_of(by, run) for by in runs_of(checkpoint.lane(one.lane), one.id))
    ]


def as_planned(checkpoint: Checkpoint, interval: Interval, run: RunIdentity) -> Interval:
    """The interval that the run's batch was planned for, if the run has one; else ``interval``. For a run that is a
    moment to Airflow, as with a cron schedule, the interval reaches to the tick before, or after. A changed schedule
    gives another interval: a retry or a clear would leave the batch, whose data no other lane reads, to no run.

    :param interval: the interval by the present schedule.
    """
    if _has_planned(run, checkpoint, batch_of(interval)):
        return interval
    for lane in checkpoint.lanes():
        span = span_of(lane)
        if span is None or not (span[0] == interval.start_ms or span[1] == interval.end_ms) or span[0] >= span[1]:
            continue
        planned = dataclasses.replace(interval, start_ms=span[0], end_ms=span[1])
        if _has_planned(run, checkpoint, batch_of(planned)):
            log.info("Run %s has planned %s, which is %s by the schedule of now", run.run_id, planned, interval)
            return planned
    return interval


def planned_interval(checkpoint: Checkpoint, run: RunIdentity) -> Interval | None:
    """The interval whose batch a cleared run, or else an earlier run of its partition, has planned before; None if
    there is none. The pipeline may read what is new by now, and the clear would be lost with a run that has no
    interval. What the run itself has made of what was new comes before what its partition has. Reads an entry of each
    interval's lane, and nothing for a run that was never cleared."""
    of_partition = None
    for lane in checkpoint.lanes() if run.was_cleared else ():
        span = span_of(lane)
        if span is None or span[0] >= span[1]:
            continue
        planned = Interval(start_ms=span[0], end_ms=span[1])
        by = _planned_by(checkpoint, batch_of(planned))
        if by is not None and run.is_of(by):
            return planned
        if by is not None and _is_of(by, run):
            of_partition = planned
    return None if of_partition is None or _has_made_live(checkpoint, run) else of_partition


def _has_made_live(checkpoint: Checkpoint, run: RunIdentity) -> bool:
    lane = checkpoint.lane(LIVE)
    return any(run.is_of(by) for number in reversed(lane.offset_log.ids()) for by in runs_of(lane, number))


def _has_planned(run: RunIdentity, checkpoint: Checkpoint, key: BatchKey) -> bool:
    by = _planned_by(checkpoint, key)
    return by is not None and _is_of(by, run)


def _planned_by(checkpoint: Checkpoint, key: BatchKey) -> RunIdentity | None:
    try:
        entry = checkpoint.lane(key.lane).offset_log.get(key.id)
    except CheckpointError:
        return None  # torn, or another pipeline's: not known to be a run's
    return None if entry is None else entry.run


def _is_of(by: RunIdentity, run: RunIdentity) -> bool:
    """Whether ``by`` is the run, or a run of the same partition: Airflow makes a new run each time for a partition."""
    if run.is_of(by):
        return True
    if run.partition_date is None or by.partition_date != run.partition_date:
        return False
    return by.dag_id == run.dag_id and run.stands_for(by)


def ms_of(moment: str | None) -> int:
    """A moment in ISO 8601 as milliseconds since the epoch; 0, before everything, for None."""
    return 0 if moment is None else int(datetime.fromisoformat(moment).timestamp() * 1000)
