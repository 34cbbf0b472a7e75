"""Committed ranges of a source, by the logs alone: ranges that no run will ever plan again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import CommitEntry
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.execution.position import starts_of
from airflow_provider_microbatch.execution.progress import told
from airflow_provider_microbatch.sources.intervals import CommittedRange


def committed(checkpoint: Checkpoint, source: str, lane: str) -> Iterator[CommittedRange]:
    """Ranges of the lane's committed batches, the newest first. Reads no more entries than are asked for.

    Yields nothing while a command is at the checkpoint. A command marks the checkpoint first and looks at the source
    then. A caller first records the data that it takes of the source, and calls this function then: so the command sees
    the record, or this function sees the command.
    """
    if checkpoint.maintenance.is_closed():
        return
    logs = checkpoint.lane(lane)
    newest, begins = logs.commit_log.latest_id(), None
    for number in range(-1 if newest is None else newest, -1, -1):
        commit, entry = logs.commit_log.get(number), logs.offset_log.get(number)
        if number == newest and commit is not None and logs.commits_another(number, commit):
            continue  # of a plan from before a rewind: the batch of the present plan has yet to read its range
        if commit is None or entry is None:
            if logs.offset_log.ids()[:1] == [number + 1]:
                # Retention removes committed batches, and none that waits for a replay.
                yield CommittedRange(start=None, end=begins, is_read=True)
            return
        if source in entry.ends:
            begins, end = starts_of(logs, number, entry).get(source), entry.ends[source]
            is_read = not commit.set_aside or checkpoint.replays.is_answered(BatchKey(lane, number))
            if begins != end:
                tells = partial(_newest_told, checkpoint, BatchKey(lane, number), commit, source)
                yield CommittedRange(start=begins, end=end, is_read=is_read, told=tells)


def told_of(checkpoint: Checkpoint, key: BatchKey, commit: CommitEntry, source: str) -> list[Mapping[str, Any]]:
    """What the reader told of the attempt that was committed, and, if there was a replay, then of that of the newest
    one, whose output is in the sink. Both have read one range; a version of before may have told less of it."""
    answer = checkpoint.replays.newest_answer(key)
    published = [commit.progress] if answer is None else [commit.progress, answer.get("progress", {})]
    return [told(checkpoint, progress).get(source, {}) for progress in published]


def _newest_told(checkpoint: Checkpoint, key: BatchKey, commit: CommitEntry, source: str) -> Mapping[str, Any]:
    return told_of(checkpoint, key, commit, source)[-1]
