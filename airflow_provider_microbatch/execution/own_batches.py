"""Which batches of a lane are a run's: those that it has planned, or brought to their commit."""

from __future__ import annotations

from datetime import datetime

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint, Lane
from airflow_provider_microbatch.checkpoint.entries import SKEW_MS, RunIdentity
from airflow_provider_microbatch.execution.position import Position

_DAY_MS = 24 * 60 * 60 * 1000


class OwnBatches:
    """What the logs of one lane say of whose its batches are.

    :param checkpoint: the checkpoint.
    :param lane: the lane.
    """

    def __init__(self, *, checkpoint: Checkpoint, lane: Lane) -> None:
        self._checkpoint = checkpoint
        self._lane = lane

    def was_searched(self, searched_ms: int | None) -> bool:
        """Whether what was found in the log at that time still stands: no command has changed it since."""
        if searched_ms is None:
            return False
        changed_ms = self._checkpoint.maintenance.changed_ms()
        # Within the skew a log counts as changed, which costs a search.
        return changed_ms is None or changed_ms < searched_ms - SKEW_MS

    def of(self, run: RunIdentity, position: Position, *, newest_only: bool = False) -> list[int]:
        """Ids of the committed batches that ``run`` planned or brought to their commit, ascending.

        A retry follows its batch at once, so only the newest can be its own. A cleared run may have had any, and
        several: then the log is searched back to where the run began, which is paid by clears alone.
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
        """Of the batches that are the run's, those before the one that it is :meth:`assigned`."""
        assigned = self.assigned(run, position)
        return [batch_id for batch_id in self.of(run, position) if batch_id != assigned]

    def assigned(self, run: RunIdentity, position: Position) -> int | None:
        """Id of the batch that ``run`` has to work on before anything new: the newest of its own, else the one that is
        planned and not committed; None if there is neither."""
        planned_by = position.planned.run if position.planned else None
        if planned_by is not None and run.is_of(planned_by):
            return position.batch_id
        own = self.of(run, position)
        return own[-1] if own else position.batch_id if position.planned else None

    def _is_own(self, run: RunIdentity, batch_id: int) -> bool:
        entries = (self._lane.offset_log.get(batch_id), self._lane.commit_log.get(batch_id))
        return any(entry is not None and entry.run is not None and run.is_of(entry.run) for entry in entries)


def ms_of(moment: str | None) -> int:
    """A moment in ISO 8601 as milliseconds since the epoch; 0, before everything, for None."""
    return 0 if moment is None else int(datetime.fromisoformat(moment).timestamp() * 1000)
