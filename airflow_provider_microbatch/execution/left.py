"""Batches of data intervals that nobody is at and that are not committed: what they took no other lane reads."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.verify import Finding
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.execution.liveness import sign_of_life


def find_left(checkpoint: Checkpoint) -> list[Finding]:
    """Such batches, each with the run that has to be cleared. The live lane's next run takes up what the one before
    left, whichever it is; an interval has one run."""
    found = []
    for lane in checkpoint.lanes():
        logs = checkpoint.lane(lane)
        number = logs.offset_log.latest_id() if lane != LIVE else None
        if number is None:
            continue
        key = BatchKey(lane, number)
        try:
            if logs.commit_of(number) is not None:
                continue
            attempt, entry = checkpoint.attempts.latest(key), logs.offset_log.get(number)
            if attempt is not None and sign_of_life(checkpoint, attempt, parked=True) is not None:
                continue
        except CheckpointError:
            continue  # torn; that is another finding
        run = entry.run if entry is not None else None
        whose = f"task {run.task_id!r} of run {run.run_id!r} of DAG {run.dag_id!r}" if run else "its interval's task"
        found.append(
            Finding(
                kind="left",
                where=logs.offset_log.where(number),
                message=f"batch {key} is planned, not committed, and nobody is at it. No other lane reads its data.",
                repair=f"Clear {whose}. If the pipeline was planned by intervals then, and is not now: with "
                "plan='interval' while that runs.",
            )
        )
    return found
