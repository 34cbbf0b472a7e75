"""Batches of data intervals that lanes took long ago, each thousand of them in an entry that never changes.

What lanes have taken is looked at by each plan and each sensor, and grows with each interval that has rows. So the
entry that all lanes change has but the newest of them, and names the entries of the others. Such an entry is named by
what it has, and written before it is named: one that nobody names, since its writer died or was late, is harmless, and
a process needs to read each of them once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.sources.jdbc.moment import Moment
from airflow_provider_microbatch.stores import Store

Intervals = tuple[tuple[str, Moment], ...]
"""The batch of each data interval, by lane, in the order in which they were planned."""

MOST_NEWEST = 1_000
"""So many batches are packed: fewer are read and written by each plan that takes something."""

MALFORMED = (ValueError, TypeError, OverflowError, KeyError, RecursionError)
"""What is raised where an entry is torn, or somebody else's."""

_MOST_KEPT = 128
"""So many entries a process keeps: beyond them a look reads all of them again."""

_ENTRY = "taken-"
_DIGEST = re.compile("[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """One entry, which is not looked at before its batches are asked for.

    :param digest: of what it has.
    :param state: the source's own state, where it lies.
    """

    digest: str
    state: Store = field(compare=False)

    @classmethod
    def of(cls, digest: Any, state: Store) -> Packed:
        """:raises ValueError: if that is no digest: it becomes a path."""
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise ValueError(f"{digest!r:.60} names no packed intervals")
        return cls(digest=digest, state=state)

    @classmethod
    def put(cls, intervals: Intervals, state: Store) -> Packed:
        """Write an entry; durable on return."""
        data = json.dumps(values_of(intervals), separators=(",", ":")).encode()
        found = cls(digest=_digest(data), state=state)
        state.put_if_absent(found.path, data)
        return found

    @property
    def path(self) -> str:
        """Where the entry lies."""
        return f"{_ENTRY}{self.digest}"

    def intervals(self) -> Intervals:
        """The batches. Reads nothing if the process has read them.

        :raises CorruptEntryError: if the entry is torn, or gone.
        """
        return _read(self)


@lru_cache(maxsize=_MOST_KEPT)  # by the digest: what an entry of this name has never changes
def _read(packed: Packed) -> Intervals:
    data = packed.state.get(packed.path)
    try:
        if data is None or _digest(data) != packed.digest:
            raise ValueError("gone" if data is None else "torn")
        return intervals_of(json.loads(data))
    except MALFORMED as error:
        raise CorruptEntryError(
            f"{packed.state.location}/{packed.path}, which tells what data intervals have taken, is not as it was "
            f"written: {error}. Restore it from a backup of the checkpoint."
        ) from error


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def values_of(intervals: Intervals) -> list[list[Any]]:
    """The batches as JSON has them."""
    return [[lane, one.values()] for lane, one in intervals]


def intervals_of(values: Sequence[Any]) -> Intervals:
    """The batches of :func:`values_of`.

    :raises Exception: one of :data:`MALFORMED`, if the values are others.
    """
    found = tuple((str(lane), Moment.of_values(one)) for lane, one in values)
    for lane, one in found:
        if not one.spans:
            raise ValueError(f"lane {lane:.60} has taken no data interval")
    return found
