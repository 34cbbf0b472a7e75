"""The ranges of the batches that a rewind has taken back, of a pipeline that keeps state.

With watermarks, which rows are late, and which rows of two sources still meet, depends on what was read together:
planned anew, the same data may make other rows, and green runs would lose some of those that were there. So the batches
after a rewind read what those before it have read, each the same.
"""

from __future__ import annotations

import logging

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
    key, commit = BatchKey(lane, position.batch_id), position.last_commit
    entry = _taken_back(checkpoint, key)
    ranges = None if entry is None else _going_on(entry, position.committed, names=sources.names)
    if ranges is None or (ranges.are_empty and not (no_data_batches and commit and commit.requires_another_batch)):
        return None  # an empty one would not be made, though there is data behind it
    why = sources.why_not_as_before(ranges)
    if why is not None:
        log.warning("Batch %s does not read what it had read before it was rewound, but what there is: %s", key, why)
        return None
    log.info("Batch %s reads what it had read before it was rewound", key)
    return ranges


def _taken_back(checkpoint: Checkpoint, key: BatchKey) -> OffsetEntry | None:
    """The plan of the batch that a command has put away, the last one that did. Only of one that was made: who takes
    back one that always fails, as it is too large, wants another one, whatever an older command has put away."""
    taken = reversed(checkpoint.maintenance.taken_out().get(key.lane, []))
    newest = next((one for one in taken if key.id in one.plans), None)
    commit = None if newest is None else newest.commits.get(key.id)
    if newest is None or commit is None:
        return None
    try:
        entry, made = checkpoint.put_away(key, newest.plans[key.id]), checkpoint.put_away_commit(commit)
    except CorruptEntryError:
        return None
    return None if made is None or made.set_aside else entry


def _going_on(entry: OffsetEntry, committed: Offsets, *, names: list[str]) -> Ranges | None:
    """The entry's ranges, if it begins where the lane stands, and has data of sources alone that the pipeline has; an
    entry of Spark's does not tell where it begins, and of a late end nobody knows that it comes again."""
    if not entry.starts or entry.late or entry.unresolved or {*entry.ends} != {*names, *committed}:
        return None
    starts = {name: entry.starts.get(name) for name in entry.ends}
    if any(starts[name] != entry.ends[name] for name in starts if name not in names):
        return None
    first = {name for name in starts if committed.get(name) is None}
    if any(starts[name] != committed[name] for name in starts if name not in first):
        return None
    return Ranges(starts, entry.ends, begun=frozenset(name for name in first if starts[name] is not None))
