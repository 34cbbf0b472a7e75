"""The newest batch of a lane whose output is in a table."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_microbatch.checkpoint.by_hand import written_since
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import CommitEntry
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.log import MetadataLog

SINCE = "since"
"""Key in ``failure`` of a batch that was set aside: the first of the batches in a row that were, itself included."""


def newest_published(checkpoint: Checkpoint, lane: str, *, below: int | None = None) -> BatchKey | None:
    """The newest batch of the lane that was published; None if there is none.

    Every run looks for that batch first, so the log is not listed, and numbers that are in no table are passed over at
    once: batches that were set aside in a row, or numbers that a command has passed over. Of these, a batch that was
    run since is in the table. The search ends at a batch that a streaming query has committed, or that retention
    removed: no batch of this package lies below.

    :param below: only batches with a smaller number count; None: all.
    :raises CorruptEntryError: if an entry cannot be read.
    """
    log = checkpoint.lane(lane).commit_log
    asked_for: list[int] | None = None
    number = log.latest_id() if below is None else below - 1
    while number is not None and number >= 0:
        commit = log.get(number)
        if commit is None or not commit.set_aside:
            return None if commit is None or commit.epoch is None else BatchKey(lane, number)
        first = _first_of_row(commit, number)
        asked_for = checkpoint.replays.epochs.ids(lane) if asked_for is None else asked_for
        found = _replayed(checkpoint, lane, [one for one in asked_for if first <= one <= number])
        if found is not None:
            return found
        number = first - 1
    return None


def published_epoch(checkpoint: Checkpoint, key: BatchKey) -> int | None:
    """The epoch of the attempt whose output of a committed batch is in the table; None if none was published.

    :raises CorruptEntryError: if an entry cannot be read.
    """
    return next(iter(published_epochs(checkpoint, key)), None)


def published_epochs(checkpoint: Checkpoint, key: BatchKey) -> list[int]:
    """The epochs of all attempts that have published a committed batch, the newest first: its commit entry tells the
    first, the answers to clears the others.

    :raises CorruptEntryError: if an entry cannot be read.
    """
    commit = checkpoint.lane(key.lane).commit_of(key.id)
    first = None if commit is None or commit.set_aside else commit.epoch
    answers = [int(answer["attempt"]) for answer in checkpoint.replays.answers(key)]
    return sorted({*answers, *(() if first is None else (first,))}, reverse=True)


def first_in_a_row(log: MetadataLog[CommitEntry], number: int) -> int:
    """The first of the consecutive batches that were set aside, if this batch is set aside now.

    :raises CorruptEntryError: if the entry before it cannot be read.
    """
    before = log.get(number - 1) if number > 0 else None
    return number if before is None or not before.set_aside else _first_of_row(before, number - 1)


def _first_of_row(commit: CommitEntry, number: int) -> int:
    """The first number as the entry says; the batch itself if an older version wrote the entry."""
    since = commit.failure.get(SINCE) if commit.failure else written_since(commit)
    return since if type(since) is int and 0 <= since <= number else number


def _replayed(checkpoint: Checkpoint, lane: str, asked_for: Sequence[int]) -> BatchKey | None:
    """The newest of these batches that was run since; None if there is none."""
    keys = (BatchKey(lane, number) for number in reversed(asked_for))
    return next((key for key in keys if checkpoint.replays.is_answered(key)), None)
