"""Entries made by hand, as the bytes that the logs would write."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.codec import encode_commit
from airflow_provider_microbatch.checkpoint.entries import CommitEntry, OffsetEntry
from airflow_provider_microbatch.execution.maintenance.plan import Drafting


def encoded_commit(entry: CommitEntry) -> bytes:
    """A commit entry as bytes."""
    return encode_commit(entry)


def encoded_offsets(drafting: Drafting, lane: str, entry: OffsetEntry) -> bytes:
    """An offset entry as bytes, in the checkpoint's format."""
    return drafting.checkpoint.lane(lane).offset_log.encoded(entry)
