"""Which ranges of a source are committed, by the logs alone: what nobody will ever plan again."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.execution.position import starts_of
from airflow_provider_microbatch.sources.intervals import CommittedRange


def committed(checkpoint: Checkpoint, source: str, lane: str) -> Iterator[CommittedRange]:
    """Ranges of the lane's committed batches, the newest first. Reads no more entries than are asked for.

    None while a command is at the checkpoint. It marks that first and looks at the source then: who says what he takes
    of the source first, and asks here then, is seen by the command, or sees it.
    """
    if checkpoint.maintenance.is_closed():
        return
    logs = checkpoint.lane(lane)
    newest, begins = logs.commit_log.latest_id(), None
    for number in range(-1 if newest is None else newest, -1, -1):
        commit, entry = logs.commit_log.get(number), logs.offset_log.get(number)
        if number == newest and commit is not None and logs.commits_another(number, commit):
            continue  # of a plan of before a rewind: this one's batch has yet to read its range
        if commit is None or entry is None:
            if logs.offset_log.ids()[:1] == [number + 1]:
                # Retention removes what is committed, and nothing that waits for a replay.
                yield CommittedRange(start=None, end=begins, is_read=True)
            return
        if source in entry.ends:
            begins, end = starts_of(logs, number, entry).get(source), entry.ends[source]
            is_read = not commit.set_aside or checkpoint.replays.is_answered(BatchKey(lane, number))
            if begins != end:
                yield CommittedRange(start=begins, end=end, is_read=is_read)
