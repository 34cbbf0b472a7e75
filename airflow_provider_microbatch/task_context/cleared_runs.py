"""Cleared runs that wait for a place among the DAG's active runs: the run of a sensor with nothing to do ends for
them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.checkpoint.key import LIVE, span_of
from airflow_provider_microbatch.exceptions import CheckpointError, CorruptEntryError
from airflow_provider_microbatch.execution.own_batches import runs_of
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.task_context.run_context import BACKFILL, open_checkpoint

if TYPE_CHECKING:
    from airflow.sdk import Context

_ASKED_AT_ONCE = 100
"""Most run ids in one question: the ids travel in a URL."""
_INTERVALS_EVERY_MS = 10 * 60 * 1000


class ClearedRuns:
    """Finds a run of a DAG that was cleared and cannot begin, since the DAG allows one active run, and a sensor of the
    active run waits for data. Airflow starts the cleared run when the active run ends, so without new data the cleared
    run would stay queued for ever.

    A queued run that has made a batch before, of what was new or of a data interval, was cleared. The logs are read for
    the runs that made batches, only while any run is queued, and each entry once.

    :param pipeline: a live pipeline; for any other none is found: a run that waits for its data interval has work of
        its own, and does not give way.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._seen = -1
        self._live: list[str] = []
        self._intervals: dict[str, list[str]] = {}
        self._fruitless = 0
        self._fruitless_until = 0.0

    def waiting(self, run: RunIdentity, *, of_intervals: bool = True) -> str | None:
        """Id of a cleared run of the asking run's DAG that is queued; None if no such run is. Writes nothing.

        :param of_intervals: look at the runs of data intervals too; see :func:`looks_at_intervals`.
        """
        if self._pipeline.plan != LIVE:
            return None
        queued = _count(run.dag_id)
        if queued == self._fruitless and monotonic() < self._fruitless_until:
            # As many as last time, when none had a batch: these runs wait for their turn, as triggered runs do. Not for
            # ever: one of them may have been deleted and another cleared since, which leaves their number as it was.
            return None
        self._fruitless = 0
        if queued == 0:
            return None
        checkpoint = open_checkpoint(self._pipeline)
        found = _queued(run.dag_id, self._of_live(checkpoint, run.dag_id))
        if found is None and of_intervals:
            found = _queued(run.dag_id, self._of_intervals(checkpoint, run.dag_id))
            if found is None:
                self._fruitless, self._fruitless_until = queued, monotonic() + _INTERVALS_EVERY_MS / 1000
        return found

    def _of_live(self, checkpoint: Checkpoint, dag_id: str) -> Sequence[str]:
        lane = checkpoint.lane(LIVE)
        newest = lane.commit_log.latest_id()
        for number in lane.commit_log.ids() if newest is not None else ():
            if number > self._seen:
                with suppress(CorruptEntryError):  # torn: it keeps no other run from being found
                    self._live += _ids(list(runs_of(lane, number)), dag_id)
                # After each: where the store is away for a moment, the next look goes on from here.
                self._seen = number
        self._seen = -1 if newest is None else newest
        return self._live

    def _of_intervals(self, checkpoint: Checkpoint, dag_id: str) -> Sequence[str]:
        """The runs of before the pipeline read what is new: a clear replays their batches too."""
        for name in checkpoint.lanes():
            if span_of(name) is None or name in self._intervals:
                continue
            with suppress(CheckpointError):  # torn, or another pipeline's: it keeps no other run from being found
                if of_interval := list(runs_of(checkpoint.lane(name), 0)):
                    self._intervals[name] = list(_ids(of_interval, dag_id))
        return [run_id for ids in self._intervals.values() for run_id in ids]


def looks_at_intervals(context: Context, *, since_ms: int | None, now_ms: int, poke_seconds: float) -> bool:
    """Whether a look of a sensor in a worker is one that asks for runs of data intervals too. Where each look is a
    process of its own, it would read the lane of each interval that the pipeline ever had: now and then is enough.

    :param since_ms: when the first process of the try had itself rescheduled, milliseconds since the epoch; None in
        that process, which reads each lane once.
    :param poke_seconds: seconds between two looks, as they are asked for.
    """
    if since_ms is None:
        return True
    # A busy scheduler, and backoff, make the pauses longer: looks that are farther apart than the time in which one of
    # them has to fall would miss it for hours.
    passed, rescheduled = now_ms - since_ms, context.get("task_reschedule_count") or 1
    return passed % _INTERVALS_EVERY_MS < max(1000 * poke_seconds, passed / rescheduled)


def _ids(runs: Iterable[RunIdentity], dag_id: str) -> Iterator[str]:
    # A backfill's runs have an allowance of their own: none waits for a run that is no backfill's.
    return (run.run_id for run in runs if run.dag_id == dag_id and not run.run_id.startswith(f"{BACKFILL}__"))


def _queued(dag_id: str, run_ids: Sequence[str]) -> str | None:
    newest_first = list(dict.fromkeys(run_ids))[::-1]
    for start in range(0, len(newest_first), _ASKED_AT_ONCE):
        asked = newest_first[start : start + _ASKED_AT_ONCE]
        if _count(dag_id, asked):
            return next((run_id for run_id in asked if _count(dag_id, [run_id])), None)
    return None


def _count(dag_id: str, run_ids: Sequence[str] | None = None) -> int:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    asked = None if run_ids is None else list(run_ids)
    return RuntimeTaskInstance.get_dr_count(dag_id=dag_id, run_ids=asked, states=["queued"])
