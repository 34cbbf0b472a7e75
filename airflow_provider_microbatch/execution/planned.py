"""A batch that is in the offset log."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import OffsetEntry
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import BrokenLogError
from airflow_provider_microbatch.execution.opened_sources import Ranges
from airflow_provider_microbatch.execution.position import Offsets, starts_of


@dataclass(frozen=True, kw_only=True)
class PlannedBatch:
    """A batch that is in the offset log.

    :param key: the batch.
    :param entry: what it reads.
    :param starts: where each source's range begins.
    :param identity: the identity by which a sink knows the batch.
    :param resumed: it was planned before this call.
    :param committed: it is in the commit log already: this run has done its work.
    :param set_aside: its commit entry says that it was set aside.
    """

    key: BatchKey
    entry: OffsetEntry
    starts: Offsets
    identity: BatchIdentity
    resumed: bool = False
    committed: bool = False
    set_aside: bool = False

    def is_nothing_of(self, name: str) -> bool:
        """Whether the batch is known to have nothing of the source."""
        return name not in self.entry.unresolved and self.entry.ends.get(name) == self.starts.get(name)

    @property
    def ranges(self) -> Ranges:
        """The ranges that the batch reads of the sources."""
        return Ranges(self.starts, self.entry.ends, frozenset(self.entry.unresolved))


def load_batch(checkpoint: Checkpoint, key: BatchKey) -> PlannedBatch:
    """A batch that is in the offset log.

    :raises BrokenLogError: if it is not.
    """
    lane = checkpoint.lane(key.lane)
    read = lane.offset_log.read(key.id)
    if read is None:
        raise BrokenLogError(
            f"batch {key.id} is not in the offset log of {checkpoint.location}: it was never planned, or retention "
            "removed it."
        )
    commit = lane.commit_of(key.id)
    return PlannedBatch(
        key=key,
        entry=read[0],
        starts=starts_of(lane, key.id, read[0]),
        identity=checkpoint.batch(key, *read),
        resumed=True,
        committed=commit is not None,
        set_aside=commit is not None and commit.set_aside,
    )
