"""Where a lane of the logs stands: Spark's ``populateStartOffsets``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint, Lane
from airflow_provider_microbatch.checkpoint.entries import CommitEntry, Offset, OffsetEntry
from airflow_provider_microbatch.exceptions import ConcurrentPlanError, MaintenanceError

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
    last_commit, latest = tail.commit, tail.offsets
    if tail.offset_id is None or latest is None:
        return Position(batch_id=0, planned=None, latest=None, last_commit=None, committed={})
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


def take_back_if_late(checkpoint: Checkpoint, lane: Lane, batch_id: int, entry: OffsetEntry, *, newest: int) -> None:
    """Take the plan ``entry`` back if a command was at the checkpoint since the planner looked. A plan is on no record
    while it is made: a command may have begun or ended, and others have gone on from what it left. The entry would
    double rows, name a source that is called otherwise by now, follow nothing, or be in the command's way.

    :param newest: number of the newest command before the planner looked at anything.
    :raises MaintenanceError: if a command is changing the checkpoint now.
    :raises ConcurrentPlanError: if one has changed it.
    """
    log = lane.offset_log
    try:
        if checkpoint.maintenance.check_none() != newest:
            raise ConcurrentPlanError(
                f"batch {batch_id} of {checkpoint.location} was planned while a command changed the log. It was taken "
                "back; the next run plans what comes next."
            )
    except (MaintenanceError, ConcurrentPlanError):
        log.take_back(batch_id, entry)
        raise


def metadata_text(entry: OffsetEntry) -> str:
    """An entry's metadata as Spark prints it after "Committed offsets for batch N. Metadata"."""
    conf = json.dumps(dict(entry.conf), ensure_ascii=False)
    return f"OffsetSeqMetadata({entry.watermark_ms},{entry.batch_timestamp_ms},{conf})"
