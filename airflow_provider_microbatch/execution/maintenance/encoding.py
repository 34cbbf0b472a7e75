"""Entries made by hand, as the bytes that the logs would write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_microbatch.checkpoint.codec import OURS, encode_commit
from airflow_provider_microbatch.checkpoint.entries import CommitEntry, OffsetEntry
from airflow_provider_microbatch.execution.maintenance.plan import Drafting


def by_hand(trail: Mapping[str, Any]) -> dict[str, Any]:
    """``extra`` of an entry that a command wrote: which, by whom, when."""
    return {OURS: {"by_hand": dict(trail)}}


def encoded_commit(entry: CommitEntry) -> bytes:
    """A commit entry as bytes."""
    return encode_commit(entry)


def encoded_offsets(drafting: Drafting, lane: str, entry: OffsetEntry) -> bytes:
    """An offset entry as bytes, in the checkpoint's format."""
    return drafting.checkpoint.lane(lane).offset_log.encoded(entry)
