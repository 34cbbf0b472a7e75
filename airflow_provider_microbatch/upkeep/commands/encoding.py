"""Entries made by hand, as the bytes that the logs would write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from airflow_provider_microbatch.checkpoint.by_hand import commit_by_hand, position_by_hand
from airflow_provider_microbatch.checkpoint.codec import encode_commit
from airflow_provider_microbatch.checkpoint.entries import CommitEntry, Offset, OffsetEntry
from airflow_provider_microbatch.execution.plan import PINNED_BY_DEFAULT
from airflow_provider_microbatch.execution.position import Position
from airflow_provider_microbatch.upkeep.commands.plan import Drafting


def encoded_commit(entry: CommitEntry) -> bytes:
    """A commit entry as bytes."""
    return encode_commit(entry)


def encoded_offsets(drafting: Drafting, lane: str, entry: OffsetEntry) -> bytes:
    """An offset entry as bytes, in the checkpoint's format."""
    return drafting.checkpoint.lane(lane).offset_log.encoded(entry)


def entry_by_hand(
    drafting: Drafting,
    position: Position,
    *,
    sources: Sequence[str],
    ends: Mapping[str, Offset | None] = MappingProxyType({}),
) -> OffsetEntry:
    """The entry of a batch that reads nothing and records where the next one begins.

    :param position: where the lane stands.
    :param sources: names of the pipeline's sources, for a lane that has no batch.
    :param ends: by source, the positions that are set; the others stay.
    """
    identity, latest = drafting.checkpoint.identity(), position.latest
    committed = dict.fromkeys(sources) if latest is None else dict(position.committed)
    return OffsetEntry(
        ends={**committed, **ends},
        starts=committed,
        batch_timestamp_ms=drafting.at_ms,
        watermark_ms=position.last_commit.next_watermark_ms if position.last_commit else 0,
        conf=PINNED_BY_DEFAULT if latest is None else latest.conf,
        source_metadata={} if latest is None else latest.source_metadata,
        pipeline=identity.pipeline if identity else None,
        extra=position_by_hand(drafting.trail),
    )


def encoded_position_commit(drafting: Drafting, entry: OffsetEntry, *, planned: bytes, since: int) -> bytes:
    """The commit entry, as bytes, of an offset entry that only sets the position: no row of it is in the table.

    :param planned: the offset entry as bytes.
    :param since: the first of the consecutive ids that are passed over, by any command.
    """
    return encode_commit(
        CommitEntry(
            next_watermark_ms=entry.watermark_ms,
            set_aside=True,
            committed_ms=drafting.at_ms,
            extra=commit_by_hand(drafting.trail, offsets=planned, since=since),
        )
    )
