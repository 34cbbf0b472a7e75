"""Cleared runs that wait for a place among the DAG's active runs: the run of a sensor with nothing to do ends for
them."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.checkpoint.key import LIVE, span_of
from airflow_provider_microbatch.execution.own_batches import runs_of
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.task_context.run_context import BACKFILL, open_checkpoint

_ASKED_AT_ONCE = 100
"""Most run ids in one question: the ids travel in a URL."""


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
        self._intervals: set[str] = set()
        self._run_ids: list[str] = []
        self._fruitless = 0

    def waiting(self, run: RunIdentity) -> str | None:
        """Id of a cleared run of the asking run's DAG that is queued; None if no such run is. Writes nothing."""
        if self._pipeline.plan != LIVE:
            return None
        queued = _count(run.dag_id)
        if queued == 0 or queued == self._fruitless:
            # As many as last time, when none had a batch: these runs wait for their turn, as triggered runs do.
            return None
        self._read_on(run.dag_id)
        newest_first = self._run_ids[::-1]
        for start in range(0, len(newest_first), _ASKED_AT_ONCE):
            asked = newest_first[start : start + _ASKED_AT_ONCE]
            if _count(run.dag_id, asked):
                return next((run_id for run_id in asked if _count(run.dag_id, [run_id])), None)
        self._fruitless = queued
        return None

    def _read_on(self, dag_id: str) -> None:
        checkpoint = open_checkpoint(self._pipeline)
        found: list[RunIdentity] = []
        for name in checkpoint.lanes():  # of before the pipeline read what is new: a clear replays that batch too
            if span_of(name) is not None and name not in self._intervals:
                of_interval = list(runs_of(checkpoint.lane(name), 0))
                found += of_interval
                self._intervals.update([name] if of_interval else [])
        lane = checkpoint.lane(LIVE)
        newest = lane.commit_log.latest_id()
        for number in lane.commit_log.ids() if newest is not None else ():
            found += runs_of(lane, number) if number > self._seen else ()
        # A backfill's runs have an allowance of their own: none waits for a run that is no backfill's.
        told = (run.run_id for run in found if run.dag_id == dag_id and not run.run_id.startswith(f"{BACKFILL}__"))
        self._run_ids = list(dict.fromkeys([*self._run_ids, *told]))
        self._seen = -1 if newest is None else newest


def _count(dag_id: str, run_ids: Sequence[str] | None = None) -> int:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    asked = None if run_ids is None else list(run_ids)
    return RuntimeTaskInstance.get_dr_count(dag_id=dag_id, run_ids=asked, states=["queued"])
