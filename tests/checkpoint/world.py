"""A checkpoint with batches in it, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt, CommitEntry, Offset, OffsetEntry, RunIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.stores.location import open_store

RUN = RunIdentity(dag_id="orders", run_id="run-1", task_id="micro_batch", ti_id="ti-1")


def opened(root: Path, *, sources: Sequence[str] = ()) -> Checkpoint:
    return Checkpoint(open_store(str(root)), sources=sources)


def claimed(root: Path, *, format: str = "v2", sources: Sequence[str] = ("orders",)) -> Checkpoint:
    checkpoint = opened(root)
    checkpoint.claim(pipeline="orders", sources=sources, format=format)
    return checkpoint


def entry(number: int, *, source: str = "orders") -> OffsetEntry:
    """Entry ``number`` of a source that gets one file a batch."""
    ends: dict[str, Offset | None] = {source: f'{{"logOffset":{number}}}'}
    starts: dict[str, Offset | None] = {source: f'{{"logOffset":{number - 1}}}' if number else None}
    return OffsetEntry(ends=ends, starts=starts, batch_timestamp_ms=number, run=RUN, pipeline="orders")


def fill(checkpoint: Checkpoint, *, planned: int, committed: int, lane: str = "live") -> None:
    """Batches 0 to ``planned - 1`` are planned, 0 to ``committed - 1`` committed."""
    for number in range(planned):
        assert checkpoint.lane(lane).offset_log.add(number, entry(number))
    for number in range(committed):
        assert checkpoint.lane(lane).commit_log.add(number, CommitEntry(epoch=1))


def attempt(key: BatchKey, epoch: int) -> Attempt:
    return Attempt(
        key=key,
        epoch=epoch,
        handle={"engine": "inline", "tag": f"{key}-{epoch}"},
        run=RUN,
        code={"transform": "jobs/orders.py:transform", "code_hash": None},
        started_ms=1000 + epoch,
    )
