"""Batches whose dead letters were run again, in a lane of their own, as that lane's offset entries say."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from shlex import quote

from airflow_provider_microbatch.checkpoint.by_hand import is_position
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LETTERS, BatchKey
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.exceptions import CheckpointError, SourceError
from airflow_provider_microbatch.execution.identity import expected, found_in, latest_in
from airflow_provider_microbatch.execution.planned import load_batch
from airflow_provider_microbatch.execution.unknown_batches import check_letters_known
from airflow_provider_microbatch.sinks import OpenSink

SOURCE = "dead_letters"
"""Name of the only source of a batch that is made of dead letters."""


def batches_of(offset: Offset | None) -> list[BatchKey]:
    """The batches whose letters a position stands for: those of its own range alone.

    :raises SourceError: if the offset is no such position.
    """
    if offset is None:
        return []
    try:
        return [BatchKey.parse(text) for text in json.loads(offset)["batches"]]
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(f"{offset:.100} is no position among dead letters.") from error


def offset_of(batches: Iterable[BatchKey]) -> Offset:
    """The position that stands for the letters of these batches."""
    return json.dumps({"batches": list(map(str, batches))})


def taken(checkpoint: Checkpoint) -> dict[BatchKey, BatchKey]:
    """For each batch whose dead letters were run again, the batch that has them, or is planned to have them."""
    lane = checkpoint.lane(LETTERS)
    found: dict[BatchKey, BatchKey] = {}
    for number in lane.offset_log.ids():
        entry = lane.offset_log.get(number)
        ends: Mapping[str, Offset | None] = {} if entry is None else entry.ends
        found |= dict.fromkeys(batches_of(ends.get(SOURCE)), BatchKey(LETTERS, number))
    return found


def first_still_told(checkpoint: Checkpoint, *, below: int) -> int | None:
    """The first batch of dead letters below ``below`` that has those of a batch whose own lane still keeps it. Were its
    entry removed, these letters would count as never run again, and be run again once more.

    :return: its id; None if there is none.
    """
    kept: dict[str, set[int]] = {}
    lane = checkpoint.lane(LETTERS)
    for number in lane.offset_log.ids():
        entry = lane.offset_log.get(number) if number < below else None
        for key in () if entry is None else batches_of(entry.ends.get(SOURCE)):
            # A batch of dead letters whose own were run again is older than the one that has them, and goes before it.
            if key.lane != LETTERS and key.lane not in kept:
                kept[key.lane] = set(checkpoint.lane(key.lane).offset_log.ids())
            if key.id in kept.get(key.lane, ()):
                return number
    return None


def replay_command(checkpoint: Checkpoint) -> str:
    """The command that runs dead letters again, and goes on with a batch of them that is planned."""
    return f"`microbatch dead-letters {quote(checkpoint.location)} --replay FILE:FUNCTION`"


def check_not_taken(checkpoint: Checkpoint, key: BatchKey, sink: OpenSink) -> None:
    """Check that a replay makes no dead letters a second time: a batch that is run anew has rows and dead letters anew,
    and the rows of its earlier letters would be in the table twice.

    :param sink: the table, or tables, that may have them.
    :raises CheckpointError: if the batch's letters have been run again, or may be at this moment. A batch of them that
        is only planned has none yet: it reads those that there are when it is run.
    :raises SinkError: if the table has letters that were run again, and nobody can tell whose; see
        :func:`check_letters_known`.
    """
    check_letters_known(checkpoint, sink)
    by = taken(checkpoint).get(key)
    if by is None:
        return
    how = _run_again(checkpoint, by, sink)
    if how is not None:
        kept = _kept_for_good(checkpoint, by, sink)
        rewind = command(checkpoint.lane(LETTERS), f"rewind --to {by.id - 1} --drop-output")
        way = (
            f"Take these out first: {rewind}; then replay the batch, and its dead letters of then."
            if kept is None
            else f"Nobody can take these out of {kept}: the batch stays as it is. {AS_IT_IS}"
        )
        # A request that waits keeps the batch's letters from being run again, and retention from it.
        waits = "" if not checkpoint.replays.pending(key) else f" Or {leave_as_it_is(checkpoint, key)}."
        raise CheckpointError(
            f"batch {key} is not replayed: {how}, so that what the replay makes of them would be in the table twice. "
            f"{way}{waits}"
        )


AS_IT_IS = "If it is right as it is, mark the task as succeeded."
"""The way on of a run whose batch is not replayed."""


def leave_as_it_is(checkpoint: Checkpoint, key: BatchKey) -> str:
    """The command that ends the wait for a clear, in words."""
    return f"leave the batch as it is: `microbatch withdraw-clear {quote(checkpoint.location)} {key}`"


def _kept_for_good(checkpoint: Checkpoint, by: BatchKey, sink: OpenSink) -> str | None:
    """Address of a table that has the batch and never gives it up; None if there is none. Of numbers that a command has
    counted over, whatever has them has them for good."""
    planned = load_batch(checkpoint, by)
    batch = expected(checkpoint, planned.identity)
    tables = (table for table in sink.tables if table.definition.keeps_for_good)
    return next(
        (table.location() for table in tables if is_position(planned.entry) or found_in(table, batch) is not None), None
    )


def _run_again(checkpoint: Checkpoint, by: BatchKey, sink: OpenSink) -> str | None:
    """How the batch has run letters again, in words; None if it has not, and no attempt at it is under way."""
    if is_position(load_batch(checkpoint, by).entry):
        return f"its dead letters count as run again since batch {by}, which a command has counted over"
    if checkpoint.lane(LETTERS).commit_of(by.id) is None:
        attempts = checkpoint.attempts
        # One that was killed counts until somebody ends it: only then it is fenced.
        begun = [epoch for epoch in attempts.epochs.all(by) if attempts.ended(by, epoch) is None]
        if begun:
            return f"its dead letters are run again as batch {by}, whose attempt {begun[-1]} has not ended"
        if latest_in(sink, expected(checkpoint, load_batch(checkpoint, by).identity)) is None:
            return None
    return f"its dead letters were run again as batch {by}"
