"""Whether a batch is in the table that it is made, or made again, for, if it is in any: a pipeline may have written to
others before, and its rows would be in both."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import JOB, Attempt
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import LETTERS, BatchKey
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.exceptions import CheckpointError, DefinitionError, SinkError, sentence
from airflow_provider_microbatch.execution.identity import (
    expected_on_record,
    found_in,
    is_of_another_plan,
    planned_identity,
)
from airflow_provider_microbatch.execution.letters_taken import taken
from airflow_provider_microbatch.execution.published_to import (
    adopted_in,
    published_as,
)
from airflow_provider_microbatch.execution.published_together import given_beside, has_lost_alone
from airflow_provider_microbatch.execution.recorded_sinks import (
    RecordedTable,
    check_may_be_asked,
    places_of,
    recorded_tables,
)
from airflow_provider_microbatch.execution.rewind_named import rewind_over
from airflow_provider_microbatch.sinks import OpenSink, Sink, SinkContext

log = logging.getLogger(__name__)


def check_not_elsewhere(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey) -> None:
    """Check that a batch is made, or replayed, in the table that it is in, if it is in any.

    :raises SinkError: if the batch is in another table, which the pipeline wrote to before, or if that cannot be told
        since the other table is away: its rows would be in both. A table that was moved to the sink's address is no
        other table, and one that got the batch together with the sink's is to have it beside what the sink has lost.
    """
    for other in adopted_in(checkpoint, key, beside=sink):
        if _has(sink, other):
            continue
        if other.unread is None:
            _check_not_in(checkpoint, other, sink, key)
        elif not (
            _was_moved(checkpoint, sink, other)
            or contains(checkpoint, sink, key)
            or has_lost_alone(checkpoint, sink, key, other)
        ):
            raise SinkError(_not_asked(sink, key, "another table", other.unread)) from other.unread
    planned = planned_identity(checkpoint, key)
    for name in _definitions(checkpoint, key, where=lambda one: _may_have_published(checkpoint, one, planned)):
        try:
            wrote = recorded_tables(checkpoint, name, beside=sink)
        except (CheckpointError, DefinitionError) as error:
            _check_of_no_attempt(checkpoint, sink, key, name, planned, error)
            continue
        for other in wrote:
            if _has(sink, other):
                continue
            if other.unread is None:
                _check_not_in(checkpoint, other, sink, key)
            elif not _was_moved(checkpoint, sink, other):
                _check_of_no_attempt(checkpoint, sink, key, name, planned, other.unread, table=other)


def _has(sink: OpenSink, other: RecordedTable) -> bool:
    return other.place is not None and any(one.definition.is_same_place(other.place) for one in sink.tables)


def _is_one_of(checkpoint: Checkpoint, sink: OpenSink, table: Sink) -> bool:
    """Whether a table of before is one of the sink's, maybe at another address."""
    return any(one.is_table_of(table, checkpoint.tables) for one in sink.tables)


def _was_moved(checkpoint: Checkpoint, sink: OpenSink, other: RecordedTable) -> bool:
    """Whether a table that cannot be loaded is one of the sink's, from another address where nothing is any more."""
    place = other.place
    if place is not None and _is_one_of(checkpoint, sink, place):
        with suppress(DefinitionError):
            check_may_be_asked(place, beside=sink)
            return place.open(SinkContext()).seems_away(checkpoint.tables) is not None
    return False


def _check_of_no_attempt(
    checkpoint: Checkpoint,
    sink: OpenSink,
    key: BatchKey,
    name: str,
    planned: BatchIdentity | None,
    error: Exception,
    *,
    table: RecordedTable | None = None,
) -> None:
    """Check that a definition of which nobody can tell a table is of no attempt at the batch as it is planned, unless
    the sink has the batch, or lost it alone.

    One of another attempt may be a stranger's, who must not stop the pipeline by a class of theirs. Whose attempt bears
    the plan is not known either, so a person can pass over it: without its definition an attempt has no table. But by
    the definition of one that has published the batch to the sink's tables it is known what those have lost.

    :param error: why that table cannot be asked here.
    :param table: the table; None if nothing of the definition can be read.
    """

    def is_in_the_way(attempt: Attempt) -> bool:
        is_of_plan = attempt.identity is not None and attempt.identity == planned
        return is_of_plan and _may_have_published(checkpoint, attempt, planned)

    may_be_there = name in _definitions(checkpoint, key, where=is_in_the_way) and not contains(checkpoint, sink, key)
    if may_be_there and (table is None or not has_lost_alone(checkpoint, sink, key, table)):
        told = _not_asked(sink, key, "another table", error)
        raise SinkError(f"{told}{_way_past(checkpoint, sink, key, name, table)}") from error
    log.warning("Whether batch %s is in a table that it was made for before, nobody can ask: %s", key, error)


def _way_past(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey, name: str, table: RecordedTable | None) -> str:
    """The way on beside that of having a definition read, in words; see :func:`_check_of_no_attempt`."""
    wrote = (
        []
        if table is None
        else [one for one in recorded_tables(checkpoint, name, beside=sink) if not table.is_same(one)]
    )
    ours = [
        one for one in sink.tables if any(one.is_written_by(place, checkpoint.tables) for place in places_of(wrote))
    ]
    if table is None or not ours or name not in published_as(checkpoint, key):
        return (
            " If it is none of yours, or nothing that this pipeline made is in its table any more, remove "
            f"{checkpoint.definitions.where(name)}."
        )
    # What has lost nothing would change beside the other table; and rows that were refused then are no rows of a table.
    lost = [one for one in given_beside(checkpoint, sink, key, table) if has_lost_alone(checkpoint, one, key, table)]
    if not lost:
        return ""
    where = " and ".join(one.location() for one in lost)
    return f" Or name {where} alone for this batch, which was published there and to that table together."


def _check_not_in(checkpoint: Checkpoint, table: RecordedTable, sink: OpenSink, key: BatchKey) -> None:
    before = table.sink
    if before is None or not before.is_cheap_to_ask or has_lost_alone(checkpoint, sink, key, table):
        return
    try:
        check_may_be_asked(before, beside=sink)
        other = before.open(SinkContext())
    except DefinitionError as error:
        raise SinkError(_not_reached(checkpoint, sink, key, table, before.location(), error)) from error
    away = other.seems_away(checkpoint.tables)
    if away is not None:
        if _is_one_of(checkpoint, sink, before) or contains(checkpoint, sink, key):
            return
        rewind = rewind_over(checkpoint, sink, key.lane, key.id - 1, gone=table)
        raise SinkError(
            f"batch {key} was made for {other.location()}, and the pipeline writes to {sink.location()} now: if it "
            f"is there, its rows would be in both. Nobody can tell: {sentence(away)}"
            + ("" if rewind is None else f" Or, if it is gone for good, {rewind}.")
        )
    try:
        if other.is_gone() or not contains(checkpoint, other, key):
            return
    except (DefinitionError, SinkError) as error:
        if _is_one_of(checkpoint, sink, before):
            return  # nobody reads the server of before any more, or its connection was removed
        raise SinkError(_not_reached(checkpoint, sink, key, table, before.location(), error)) from error
    rewind = rewind_over(checkpoint, sink, key.lane, key.id - 1)
    if table.is_of_letters:
        raise SinkError(_letters_left(checkpoint, other, sink, key, rewind=rewind))
    told = (
        f"batch {key} was published to {other.location()}, and is there. The pipeline writes to {sink.location()} "
        "now: its rows would be in both."
    )
    together = given_beside(checkpoint, sink, key, table)
    if rewind is not None:
        raise SinkError(
            f"{told} Name the old table for this batch, or move the old table's batches to the new one, or have "
            f"{rewind} take it and all later batches out and run them again."
        )
    # Moved to where it is already, its rows would be there twice.
    way = "Name the old table for this batch, alone or beside the new one"
    if together:
        named = " and ".join(one.location() for one in (other, *together))
        letters = "" if sink.definition.dead_letters is None else " beside the dead letters'"
        way = f"Name {named} for this batch, and no other table{letters}: they got it together"
    refused = before.not_replaceable()
    raise SinkError(f"{told} {way}{'' if refused is None else f': {refused}'}.")


def _not_asked(sink: OpenSink, key: BatchKey, before: str, error: Exception) -> str:
    """Why a batch is not made whose table of before cannot be asked from here.

    :param before: that table.
    """
    return (
        f"batch {key} was made for {before} before, and the pipeline writes to {sink.location()} now: if it is there, "
        f"its rows would be in both. Nobody has looked: {error}"
    )


def _not_reached(
    checkpoint: Checkpoint, sink: OpenSink, key: BatchKey, table: RecordedTable, before: str, error: Exception
) -> str:
    """As :func:`_not_asked`, with the ways on: the table's connection or its server may be gone for good."""
    told = f"{sentence(_not_asked(sink, key, before, error))} Have that answer again"
    rewind = rewind_over(checkpoint, sink, key.lane, key.id - 1, gone=table)
    return f"{told}." if rewind is None else f"{told}; or, if it is gone for good, {rewind}."


def _letters_left(
    checkpoint: Checkpoint, letters: OpenSink, sink: OpenSink, key: BatchKey, *, rewind: str | None
) -> str:
    """Why a batch is not replayed whose dead letters stay where the pipeline sends none any more, and the ways on, in
    the order in which they are accepted."""
    now = sink.definition.dead_letters
    today = "has no dead_letters any more" if now is None else f"sends them to {now.location()} now"
    told = (
        f"batch {key} has its dead letters in {letters.location()}, and the pipeline {today}: rows that it refused "
        "then would be there and in its tables too. "
    )
    became = sorted(by for of, by in taken(checkpoint).items() if of.lane == key.lane and of.id >= key.id)
    if became:
        first = command(checkpoint.lane(LETTERS), f"rewind --to {became[0].id - 1} --drop-output")
        told += (
            "Dead letters of it, or of later batches, are planned to be run again, or were run again: first "
            f"{first} takes that out. Then: "
        )
    out = "take it and all later batches out, with their dead letters, and run them again as the pipeline is now"
    again = "" if rewind is None else f"; or have {rewind} {out}"
    return f"{told}Name {letters.location()} as dead_letters again, and clear it once more{again}."


def contains(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey) -> bool:
    """Whether the batch, as it is on record, is in all tables of the sink.

    :raises SinkError: if one cannot tell.
    """
    return found_in(sink, expected_on_record(checkpoint, key, tables=checkpoint.tables)) is not None


def _may_have_published(checkpoint: Checkpoint, attempt: Attempt, planned: BatchIdentity | None) -> bool:
    """Whether the attempt may have published the batch. Not if it made the batch as it was planned before a rewind: the
    rewind took out the published output, and a process that slept publishes it no more. Nor if its job failed, and
    there is nothing to publish: its own process recorded that when it had given the attempt up.

    :param planned: the batch as it is planned now.
    """
    if planned is not None and is_of_another_plan(attempt, planned):
        return False
    end = checkpoint.attempts.ended(attempt.key, attempt.epoch)
    return end is None or end.state != "failed" or end.cause != JOB


def _definitions(checkpoint: Checkpoint, key: BatchKey, *, where: Callable[[Attempt], bool]) -> Iterator[str]:
    """Names of the pipeline definitions that attempts of the batch ran, each once. An attempt that cannot be read is
    left out."""
    seen = set[str]()
    for epoch in checkpoint.attempts.epochs.all(key):
        with suppress(CheckpointError):
            attempt = checkpoint.attempts.get(key, epoch)
            name = attempt.definition if attempt is not None else None
            if attempt is not None and name is not None and name not in seen and where(attempt):
                seen.add(name)
                yield name
