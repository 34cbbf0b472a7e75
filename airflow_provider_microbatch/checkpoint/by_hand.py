"""The trail of a command in the log entries that it writes: the command, its user, its time, and a commit's plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_microbatch.checkpoint.codec import OURS
from airflow_provider_microbatch.checkpoint.entries import CommitEntry, OffsetEntry
from airflow_provider_microbatch.checkpoint.identity import digest_of
from airflow_provider_microbatch.checkpoint.records import to_bytes, to_json

_KEY = "by_hand"
_POSITION = "position"
_PLAN = "plan"
_SINCE = "since"


def by_hand(trail: Mapping[str, Any]) -> dict[str, Any]:
    """``extra`` of an entry that a command wrote.

    :param trail: the command, its user, and its time.
    """
    return {OURS: {_KEY: dict(trail)}}


def position_by_hand(trail: Mapping[str, Any]) -> dict[str, Any]:
    """``extra`` of an offset entry that only says where the next batch begins: no row is read for such an entry."""
    return {OURS: {_KEY: {**trail, _POSITION: True}}}


def commit_by_hand(trail: Mapping[str, Any], *, offsets: bytes, since: int | None = None) -> dict[str, Any]:
    """``extra`` of a commit entry that a command writes. The entry names its plan, since the command may sleep until
    the number belongs to another batch.

    :param offsets: the offset entry that the commit entry commits, as it lies in the log.
    :param since: the first of the consecutive numbers that the command passes over; None if that number is not known.
    """
    row = {} if since is None else {_SINCE: since}
    return {OURS: {_KEY: {**trail, _PLAN: digest_of(offsets), **row}}}


def bears_trail(data: bytes, *, command: str, by: str) -> bool:
    """Whether the bytes are an entry that this command wrote: an entry of the logs, or a record of the command's own.

    :param command: as it was typed, without the location.
    :param by: user and host.
    """
    return to_bytes(to_json({"command": command, "by": by})[1:-1]) in data


def is_position(entry: OffsetEntry) -> bool:
    """Whether the offset entry only says where the next batch begins."""
    return _trail(entry).get(_POSITION) is True


def is_beginning(entry: OffsetEntry) -> bool:
    """Whether the offset entry only says where the next batch begins, and that nothing was read before it either."""
    return is_position(entry) and not any((*entry.starts.values(), *entry.ends.values()))


def is_rebuilt(entry: OffsetEntry) -> bool:
    """Whether repair has written the offset entry again, in place of one that was lost."""
    return bool(_trail(entry)) and not is_position(entry)


def written_since(commit: CommitEntry) -> object:
    """The first of the consecutive numbers that a command passed over, as its commit entry says; or None."""
    return _trail(commit).get(_SINCE)


def commits_another(commit: CommitEntry, entry: OffsetEntry, data: bytes) -> bool:
    """Whether the commit entry was written for another plan of the batch than the one in the offset log.

    :param data: the offset entry as it lies in the log.
    """
    plan = commit.plan or _trail(commit).get(_PLAN)
    # An entry that repair has rebuilt stands in for the entry that was committed; so does one that was handed over with
    # other settings, whose batch keeps the identity of the entry before.
    return plan is not None and not is_rebuilt(entry) and plan not in (digest_of(data), entry.stands_for)


def _trail(entry: OffsetEntry | CommitEntry) -> Mapping[str, Any]:
    ours = entry.extra.get(OURS)
    found = ours.get(_KEY) if isinstance(ours, Mapping) else None
    return found if isinstance(found, Mapping) else {}
