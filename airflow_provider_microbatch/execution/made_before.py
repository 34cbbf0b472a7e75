"""The ranges of the batches that a rewind has taken back, of a pipeline that keeps state.

With watermarks, which rows are late, and which rows of two sources still meet, depends on what was read together:
planned anew, the same data may make other rows, and green runs would lose some of those that were there. So the batches
after a rewind read what those before it have read, each the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import OffsetEntry
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.execution.opened_sources import OpenedSources, Ranges
from airflow_provider_microbatch.execution.position import Offsets, Position

log = logging.getLogger(__name__)


def made_before(
    checkpoint: Checkpoint, sources: OpenedSources, position: Position, *, lane: str, no_data_batches: bool
) -> Ranges | None:
    """The ranges that the next batch had before a rewind took it back, the last one that did; None if none goes on from
    where the lane stands, or its sources were others or cannot read it again: then the next batch is planned as any.

    :param position: nothing is planned there.
    :param no_data_batches: whether batches without data are wanted at all.
    """
    commit = position.last_commit
    may_be_empty = no_data_batches and commit is not None and commit.requires_another_batch
    for entry in _taken_back(checkpoint, BatchKey(lane, position.batch_id)):
        ranges = _going_on(entry, position.committed, names=sources.names)
        if ranges is not None and not sources.why_not_anew(ranges):
            if ranges.are_empty and not may_be_empty:
                return None  # none would be made, though there is data behind it
            log.info("Batch %s/%s reads what it had read before it was rewound", lane, position.batch_id)
            return ranges
    return None


def _taken_back(checkpoint: Checkpoint, key: BatchKey) -> Iterator[OffsetEntry]:
    """The plans of the batch that commands have put away, the newest first. Only of one that was made: who takes back
    one that always fails, as it is too large, wants another one."""
    for one in reversed(checkpoint.maintenance.taken_out().get(key.lane, [])):
        plan, commit = one.plans.get(key.id), one.commits.get(key.id)
        if plan is None or commit is None:
            continue
        with suppress(CorruptEntryError):
            entry, made = checkpoint.put_away(key, plan), checkpoint.put_away_commit(commit)
            if entry is not None and made is not None and not made.set_aside:
                yield entry


def _going_on(entry: OffsetEntry, committed: Offsets, *, names: list[str]) -> Ranges | None:
    """The entry's ranges, if it begins where the lane stands, in the sources that the pipeline has; an entry of Spark's
    does not tell where it begins, and of a late end nobody knows that it comes again."""
    if not entry.starts or entry.late or entry.unresolved or {*entry.ends} != {*names, *committed}:
        return None
    starts = {name: entry.starts.get(name) for name in entry.ends}
    first = {name for name in starts if committed.get(name) is None}
    if any(starts[name] != committed[name] for name in starts if name not in first):
        return None
    return Ranges(starts, entry.ends, begun=frozenset(name for name in first if starts[name] is not None))
