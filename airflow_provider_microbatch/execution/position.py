"""Where a lane of the logs stands: Spark's ``populateStartOffsets``."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint, Lane
from airflow_provider_microbatch.checkpoint.entries import Attempt, AttemptEnd, CommitEntry, Offset, OffsetEntry
from airflow_provider_microbatch.checkpoint.fences import FencedBy, fence, is_fence_by
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import (
    AttemptFencedError,
    ConcurrentPlanError,
    CorruptEntryError,
    MaintenanceError,
)

log = logging.getLogger(__name__)

Offsets = Mapping[str, Offset | None]

_PLAN = "plan"
"""Key of the plan's digest in the handle of the fence by which the plan is taken back."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """The state of a lane's logs, read once.

    :param batch_id: the batch that is planned and not committed, else the id that the next plan will take.
    :param planned: entry of the batch that is planned and not committed; None if there is none.
    :param latest: the newest offset log entry; None before the first plan.
    :param last_commit: the newest commit log entry; None before the first commit.
    :param committed: committed offsets by source, where the next range starts.
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
    """Where batch ``batch_id`` begins, by source: as its entry says, or (an entry of Spark's) the ends before it."""
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


def late_commit(checkpoint: Checkpoint, lane: Lane) -> tuple[int, bytes] | None:
    """Number and bytes of the newest commit entry, if its batch was rewound before the entry was written; None if the
    entry is right, or lacks its plan for another reason. The writer of such an entry slept meanwhile, and died before
    it could take the entry back."""
    number = lane.commit_log.latest_id()
    read = None if number is None else lane.commit_log.read(number)
    if number is None or read is None:
        return None
    commit, data = read
    if lane.offset_log.has(number):
        return (number, data) if commit.plan is not None and lane.commits_another(number, commit) else None
    # Not lost: a rewind fences, and the next batch of the number has later epochs.
    epoch: object = commit.epoch or commit.failure.get("epoch")
    if type(epoch) is not int:
        return None  # another writer's, or of a version that records no epoch: repair tells what it is
    attempts = checkpoint.attempts.all(BatchKey(lane.name, number))
    rewound = [attempt.epoch for attempt in attempts if is_fence_by(attempt, FencedBy.REWOUND)]
    return (number, data) if 0 < epoch < max(rewound, default=0) else None


def take_back_late_commit(checkpoint: Checkpoint, lane: Lane) -> bool:
    """Remove the newest commit entry if it came after its batch was rewound; False if it did not. To go on from such an
    entry would lose the batch."""
    late = late_commit(checkpoint, lane)
    if late is None:
        return False
    # By its bytes: an entry that another version has written, or that hides other secrets, would be encoded otherwise.
    lane.commit_log.remove(*late)
    log.warning("Batch %s was rewound, and committed after that by a process that slept: it is not", late[0])
    return True


def take_back_if_late(checkpoint: Checkpoint, lane: Lane, batch_id: int, entry: OffsetEntry, *, newest: int) -> None:
    """Take the plan ``entry`` back if a command was at the checkpoint since the planner looked. A plan is on no record
    while it is made: a command may have begun or ended, and other runs have gone on from the logs that it left. The
    entry would double rows, name a source by its former name, follow no entry, or be in the command's way.

    :param newest: number of the newest command before the planner looked at anything.
    :raises MaintenanceError: if a command is changing the checkpoint now.
    :raises ConcurrentPlanError: if a command has changed the checkpoint.
    """
    try:
        changed = checkpoint.maintenance.check_none() != newest
    except MaintenanceError:
        _take_back(checkpoint, lane, BatchKey(lane.name, batch_id), entry)
        raise
    if changed and _take_back(checkpoint, lane, BatchKey(lane.name, batch_id), entry):
        raise _taken_back(checkpoint, batch_id)
    if changed:
        raise ConcurrentPlanError(
            f"batch {batch_id} of {checkpoint.location} was planned while a command changed the log, and another run "
            "has gone on from it. Nothing more was done here."
        )


def check_not_taken_back(checkpoint: Checkpoint, batch: BatchIdentity) -> None:
    """Check that the plan of a batch is not to be taken back. Such a plan is taken back here: its planner may be dead.

    A caller looks at the newest epoch, then calls this, then begins an attempt under exactly the next epoch. So either
    that attempt is on record before the fence, and the plan stays, or the fence is seen here.

    :raises ConcurrentPlanError: if the plan of a live batch is taken back.
    :raises AttemptFencedError: if the plan of an interval's batch is: a skip is green, and no run would come back for
        it.
    """
    for epoch in reversed(checkpoint.attempts.epochs.all(batch.key)):
        attempt = _readable(checkpoint, batch.key, epoch)
        if attempt is None:
            continue
        if is_fence_by(attempt, FencedBy.TAKEN_BACK) and attempt.handle.get(_PLAN) == batch.digest:
            log = checkpoint.lane(batch.key.lane).offset_log
            read = log.read(batch.key.id)
            if read is not None and checkpoint.batch(batch.key, *read) == batch:
                log.remove(batch.key.id, read[1])
            taken_back = _taken_back(checkpoint, batch.key.id)
            raise taken_back if batch.key.lane == LIVE else AttemptFencedError(f"{taken_back} Try again.")
        if attempt.identity == batch:
            return  # no attempt is made of a plan that is taken back


def _take_back(checkpoint: Checkpoint, lane: Lane, key: BatchKey, entry: OffsetEntry) -> bool:
    """Remove the plan unless a process has gone on from it, whose output or entries would belong to no batch then. The
    plan is fenced first: from then on no attempt at it begins, and if this process dies here, the next one does the
    rest.

    :return: whether the plan is gone.
    """
    attempts, batch = checkpoint.attempts, checkpoint.batch(key, entry, lane.offset_log.encoded(entry))
    while True:
        epoch = attempts.latest_epoch(key) + 1
        made = (_readable(checkpoint, key, earlier) for earlier in reversed(attempts.epochs.all(key)))
        newest = lane.commit_log.latest_id()
        if (newest is not None and newest >= key.id) or any(one is not None and one.identity == batch for one in made):
            return False
        fencing = fence(key, epoch, by=FencedBy.TAKEN_BACK, started_ms=entry.batch_timestamp_ms)
        if attempts.take_exactly(replace(fencing, handle={**fencing.handle, _PLAN: batch.digest})):
            break
    why = "the plan was taken back: a command was at the checkpoint while it was made"
    attempts.end(key, epoch, AttemptEnd(state="canceled", error=why, ended_ms=entry.batch_timestamp_ms))
    lane.offset_log.take_back(key.id, entry)
    return True


def _taken_back(checkpoint: Checkpoint, batch_id: int) -> ConcurrentPlanError:
    return ConcurrentPlanError(
        f"batch {batch_id} of {checkpoint.location} was planned while a command changed the log. It was taken back; "
        "the next run plans what comes next."
    )


def _readable(checkpoint: Checkpoint, key: BatchKey, epoch: int) -> Attempt | None:
    """The attempt; None for a torn entry, whose process does not go on from anything either."""
    try:
        return checkpoint.attempts.get(key, epoch)
    except CorruptEntryError:
        return None


def metadata_text(entry: OffsetEntry) -> str:
    """An entry's metadata as Spark prints it after "Committed offsets for batch N. Metadata"."""
    conf = json.dumps(dict(entry.conf), ensure_ascii=False)
    return f"OffsetSeqMetadata({entry.watermark_ms},{entry.batch_timestamp_ms},{conf})"
