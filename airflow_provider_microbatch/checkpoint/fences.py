"""Epochs that only fence: such an epoch fences all attempts before it, and nothing runs under it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from airflow_provider_microbatch.checkpoint.entries import Attempt, RunIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey


class FencedBy(StrEnum):
    """Why nothing runs under an epoch. The value stands in the entry where the engine of an attempt does."""

    JANITOR = "janitor"
    """The janitor gave up the attempt before, which was found dead."""

    SET_ASIDE = "set aside"
    """The batch was set aside under this epoch."""

    RESTORED = "restored"
    """The epoch belonged to an attempt that a restored backup does not know."""

    REWOUND = "rewound"
    """The batch of this number was given up, and the next batch of this number begins after this epoch."""

    TAKEN_BACK = "taken back"
    """The batch was planned while a command was at the checkpoint, and its plan is taken back."""

    GONE_ON = "gone on"
    """The next batch goes on from the batch's state, which no attempt may replace any more."""

    COMMAND = "maintenance"
    """A command put the entry in place of one that was torn or missing."""


def fence(
    key: BatchKey,
    epoch: int,
    *,
    by: FencedBy,
    started_ms: int,
    run: RunIdentity | None = None,
    by_hand: Mapping[str, Any] | None = None,
) -> Attempt:
    """An attempt that only fences. It has no definition: job status hooks were never told of such an attempt.

    :param by_hand: the command, its user and its time; None if no command fences.
    """
    trail = {} if by_hand is None else {"by_hand": dict(by_hand)}
    handle = {"engine": by.value, **trail}
    return Attempt(key=key, epoch=epoch, handle=handle, run=run, code={}, started_ms=started_ms)


def is_fence_by(attempt: Attempt, by: FencedBy) -> bool:
    """Whether the attempt only fences, for this reason."""
    return attempt.is_fence and attempt.handle.get("engine") == by.value
