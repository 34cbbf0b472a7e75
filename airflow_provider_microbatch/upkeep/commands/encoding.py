"""Entries made by hand, as the bytes that the logs would write."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.by_hand import commit_by_hand
from airflow_provider_microbatch.checkpoint.codec import encode_commit
from airflow_provider_microbatch.checkpoint.entries import CommitEntry, OffsetEntry
from airflow_provider_microbatch.upkeep.commands.plan import Drafting


def encoded_commit(entry: CommitEntry) -> bytes:
    """A commit entry as bytes."""
    return encode_commit(entry)


def encoded_offsets(drafting: Drafting, lane: str, entry: OffsetEntry) -> bytes:
    """An offset entry as bytes, in the checkpoint's format."""
    return drafting.checkpoint.lane(lane).offset_log.encoded(entry)


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
