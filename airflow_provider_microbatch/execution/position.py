"""Where a lane of the logs stands: Spark's ``populateStartOffsets``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.checkpoint import Lane
from airflow_provider_microbatch.checkpoint.entries import CommitEntry, Offset, OffsetEntry

Offsets = Mapping[str, Offset | None]


@dataclass(frozen=True, kw_only=True)
class Position:
    """What the logs of a lane say, read once.

    :param batch_id: the batch that is planned and not committed, else the id that the next plan will take.
    :param planned: entry of the batch that is planned and not committed; None if there is none.
    :param latest: the newest offset log entry; None before the first plan.
    :param last_commit: the newest commit log entry; None before the first commit.
    :param committed: committed offsets by source: what the next range starts from.
    """

    batch_id: int
    planned: OffsetEntry | None
    latest: OffsetEntry | None
    last_commit: CommitEntry | None
    committed: Offsets

    def describe(self) -> str:
        """The line that Spark logs for this state."""
        if self.latest is None:
            return "Starting new streaming query."
        available = self.planned.ends if self.planned else self.committed
        return (
            f"Resuming at batch {self.batch_id} with committed offsets {render(self.committed)} "
            f"and available offsets {render(available)}"
        )


def render(offsets: Offsets) -> str:
    """Offsets by source for log lines, as ``{orders: {"logOffset":3}}``."""
    return "{" + ", ".join(f"{name}: {offset if offset is not None else '-'}" for name, offset in offsets.items()) + "}"


def starts_of(lane: Lane, batch_id: int, entry: OffsetEntry) -> Offsets:
    """Where batch ``batch_id`` begins, by source: as its entry says, or (an entry that Spark wrote) the ends before."""
    if entry.starts:
        return {name: entry.starts.get(name) for name in entry.ends}
    before = lane.offset_log.get(batch_id - 1) if batch_id > 0 else None
    return {name: before.ends.get(name) if before else None for name in entry.ends}


def read_position(lane: Lane) -> Position:
    """Read where the lane stands.

    :raises BrokenLogError: if the two logs contradict each other.
    :raises CorruptEntryError: if one of the newest entries cannot be read.
    """
    tail = lane.tail()
    last_commit = lane.commit_log.get(tail.commit_id) if tail.commit_id is not None else None
    if tail.offset_id is None:
        return Position(batch_id=0, planned=None, latest=None, last_commit=None, committed={})
    latest = lane.offset_log.get(tail.offset_id)
    assert latest is not None, "tail() has read this entry"
    if tail.commit_id == tail.offset_id:
        return Position(
            batch_id=tail.offset_id + 1, planned=None, latest=latest, last_commit=last_commit, committed=latest.ends
        )
    return Position(
        batch_id=tail.offset_id,
        planned=latest,
        latest=latest,
        last_commit=last_commit,
        committed=starts_of(lane, tail.offset_id, latest),
    )


def metadata_text(entry: OffsetEntry) -> str:
    """An entry's metadata as Spark prints it after "Committed offsets for batch N. Metadata"."""
    conf = json.dumps(dict(entry.conf), ensure_ascii=False)
    return f"OffsetSeqMetadata({entry.watermark_ms},{entry.batch_timestamp_ms},{conf})"
