"""Which attempt ran last, so that its pipeline is the one on record.

A rewind leaves the attempts of the batches that it takes back, and the lane may take long to come as far again: what
lay in a hundred batches may be planned as one. So the highest number alone tells nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.key import LETTERS, BatchKey
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.execution.identity import is_of_another_plan, planned_identity


def newest_first(checkpoint: Checkpoint, lane: str) -> Iterator[Attempt]:
    """The attempts of a lane that name the pipeline they ran, the newest first: those of the newest plan, then those of
    plans that were rewound since, by when they were planned, then all before. One that cannot be read is left out.

    Within a lane numbers tell which is the newest, but for those behind the newest planned batch: a rewind may have
    left these, and plans follow one another.
    """
    newest = checkpoint.lane(lane).offset_log.latest_id()
    left, found = list(checkpoint.attempts.epochs.ids(lane)), list[Attempt]()
    while left:
        key = BatchKey(lane, left.pop())
        attempts = list(_of(checkpoint, key))
        found += attempts
        if newest is not None and key.id <= newest and _has_run(checkpoint, key, attempts):
            break
    yield from sorted(found, key=_when, reverse=True)
    for number in reversed(left):
        yield from _of(checkpoint, BatchKey(lane, number))


def ran_last(checkpoint: Checkpoint) -> Attempt | None:
    """The attempt that began last, of the newest of all lanes, by the clocks of workers; None if none is on record."""
    firsts = (next(newest_first(checkpoint, lane), None) for lane in checkpoint.attempts.epochs.lanes())
    return max(filter(None, firsts), key=lambda attempt: attempt.started_ms, default=None)


def newest_pipeline(checkpoint: Checkpoint, *, of_letters: bool = False) -> tuple[str, Mapping[str, Any]] | None:
    """The pipeline as its last run ran it: its definition's name, and its plain form. None if no pipeline is on record.

    Each interval has a lane of its own, and there may have been a live one before, so the names of lanes tell nothing:
    which of them ran last only the clocks of workers tell. What ran for a clear may be of the code of long ago, and
    counts where nothing else does. Reads no attempt of a checkpoint that has one definition.

    :param of_letters: whether to return the pipeline that runs the dead letters again, with the letters as its source.
    """
    definitions = checkpoint.definitions
    names = definitions.names()
    lanes = [lane for lane in checkpoint.attempts.epochs.lanes() if (lane == LETTERS) == of_letters]
    for attempt in _all_newest_first(checkpoint, lanes) if len(names) > 1 else ():
        with suppress(CheckpointError):
            name = attempt.definition
            found = None if name is None else definitions.get(name)
            if name is not None and found is not None:
                return name, found
    # No attempt was ever opened: a plan that was refused may have left the pipeline.
    left = ((name, definitions.get(name)) for name in names)
    return next(((name, found) for name, found in left if found is not None), None)


def _all_newest_first(checkpoint: Checkpoint, lanes: Sequence[str]) -> Iterator[Attempt]:
    """The attempts of all these lanes, those of the lane that ran last first; then what ran for clears, likewise."""

    def of(lane: str, *, clears: bool) -> Iterator[Attempt]:
        return (one for one in newest_first(checkpoint, lane) if (one.request is not None) == clears)

    for clears in (False, True):
        firsts = filter(None, (next(of(lane, clears=clears), None) for lane in lanes))
        for first in sorted(firsts, key=lambda attempt: attempt.started_ms, reverse=True):
            yield from of(first.key.lane, clears=clears)


def _of(checkpoint: Checkpoint, key: BatchKey) -> Iterator[Attempt]:
    for epoch in reversed(checkpoint.attempts.epochs.all(key)):
        with suppress(CheckpointError):
            attempt = checkpoint.attempts.get(key, epoch)
            if attempt is not None and attempt.definition is not None:
                yield attempt


def _has_run(checkpoint: Checkpoint, key: BatchKey, attempts: list[Attempt]) -> bool:
    """Whether one of the batch's attempts is of the batch as it is planned; of a plan that is torn each may be."""
    try:
        planned = planned_identity(checkpoint, key)
    except CheckpointError:
        return bool(attempts)
    return planned is not None and any(not is_of_another_plan(one, planned) for one in attempts)


def _when(attempt: Attempt) -> tuple[int, int, int]:
    planned_ms = 0 if attempt.identity is None else attempt.identity.planned_ms
    return planned_ms, attempt.key.id, attempt.epoch
