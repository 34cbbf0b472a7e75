"""Tables that got a batch together with the pipeline's of now: the batch is in several tables because it was meant to
be, and what is lost in one of them may come back alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import CheckpointError, CorruptEntryError, DefinitionError, SinkError
from airflow_provider_microbatch.execution.identity import (
    expected_on_record,
    found_in,
    is_of_another_plan,
    planned_identity,
)
from airflow_provider_microbatch.execution.newest import published_epochs
from airflow_provider_microbatch.execution.published_to import adopted_in
from airflow_provider_microbatch.execution.recorded_sinks import RecordedTable, check_may_be_asked, recorded_tables
from airflow_provider_microbatch.sinks import ExpectedBatch, OpenSink, SinkContext
from airflow_provider_microbatch.sinks.manifest import ADOPTED


def published_beside(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey) -> list[RecordedTable]:
    """The tables that the sink has not, and to which an attempt has published the batch together with one of the
    sink's, or in which it has adopted output, as in one of the sink's; whether or not they have it still. So are those
    of an attempt that was cut off between two of them. One of dead letters does not count: what it has are rows that
    the others are not to have.

    :param sink: the pipeline's sink of now.
    :raises CorruptEntryError: if an entry cannot be read.
    """
    for tables in (*_given(checkpoint, sink, key), *_cut_off(checkpoint, sink, key)):
        others = [one for one in tables if not _is_ours(checkpoint, sink, one)]
        if 0 < len(others) < len(tables):
            return others
    return []


def given_beside(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey, other: RecordedTable) -> list[OpenSink]:
    """The sink's tables that an attempt has published the batch to which published it to another table, too, or that
    have adopted output of it which was in both.

    :param other: a table that the sink has not.
    :raises CorruptEntryError: if an entry cannot be read.
    """
    given = [tables for tables in _given(checkpoint, sink, key) if any(map(other.is_same, tables))]
    wrote = [one for tables in given for one in tables if not other.is_same(one)]
    return [table for table in sink.tables if any(_is_of(checkpoint, table, one) for one in wrote)]


def has_lost_alone(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey, other: RecordedTable) -> bool:
    """Whether the sink has lost a batch that it got together with another table, and has by no attempt that wrote to
    both: made again here, the batch is where it was before. While the sink has what came with the other table's output,
    that output would stay as it was beside what a replay makes. And a table which never got the batch, as one that is
    named in the other one's place, would be one more that has it.

    :param other: a table that the sink has not.
    """
    together = given_beside(checkpoint, sink, key, other)
    if not together:
        return False
    asked = expected_on_record(checkpoint, key, tables=checkpoint.tables)
    letters = sink.definition.dead_letters
    # Letters of several tables lie together: where there are none, a replay takes none of the other table's along.
    parts = [(table, found) for table in sink.tables if (found := found_in(table, asked)) is not None]
    epochs = [found.epoch for table, found in parts if table.definition is not letters or found.dead_letters]
    # Of each: one table may have come back alone, while another has what came with the other table's output.
    for tables in (_tables(checkpoint, key, epoch, beside=sink) for epoch in epochs):
        if not tables or any(map(other.is_same, tables)):
            return False
    others = (table for table in sink.tables if table not in together and table.definition is not letters)
    return all(found_in(table, asked) is not None for table in others)


def _given(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey) -> Iterator[list[RecordedTable]]:
    """The tables of each attempt that has published the batch as it is planned: answers to clears of before a rewind
    stay. And those of adopted output, also before a run commits it: whatever else makes the batch leaves it there."""
    is_planned = _of_the_plan(checkpoint, key)
    for epoch in published_epochs(checkpoint, key) or [ADOPTED]:
        made = None if epoch == ADOPTED else checkpoint.attempts.made(key, epoch)
        if epoch == ADOPTED or (made is not None and is_planned(made)):
            yield _tables(checkpoint, key, epoch, beside=sink)


def _cut_off(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey) -> Iterator[list[RecordedTable]]:
    """The tables of each attempt at a batch that is planned and not committed whose output one of them has, or may
    have, since nobody can tell: the others were to have it too."""
    lane = checkpoint.lane(key.lane)
    if lane.commit_of(key.id) is not None or not lane.offset_log.has(key.id):
        return
    asked = expected_on_record(checkpoint, key, tables=checkpoint.tables)
    for epoch in checkpoint.attempts.epochs.all(key):
        tables = _tables(checkpoint, key, epoch, beside=sink)
        if len(tables) > 1 and any(_may_have(one, asked, epoch, beside=sink) for one in tables):
            yield tables


def _may_have(table: RecordedTable, asked: ExpectedBatch, epoch: int, *, beside: OpenSink) -> bool:
    """Whether a table has the output of an attempt, as far as anybody can tell."""
    if table.sink is None:
        return True
    try:
        check_may_be_asked(table.sink, beside=beside)
        found = found_in(table.sink.open(SinkContext()), asked)
    except (DefinitionError, SinkError):
        return True
    return found is not None and found.epoch == epoch


def _of_the_plan(checkpoint: Checkpoint, key: BatchKey) -> Callable[[Attempt], bool]:
    """Tells whether an attempt is of the batch as it is planned. Of a plan that is torn each may be: a rewind is the
    way on that `repair` names then, and it has to be accepted where nothing is lost by it."""
    try:
        planned = planned_identity(checkpoint, key)
    except CorruptEntryError:
        return lambda made: True
    return lambda made: planned is not None and not is_of_another_plan(made, planned)


def _tables(checkpoint: Checkpoint, key: BatchKey, epoch: int, *, beside: OpenSink) -> list[RecordedTable]:
    """The tables that have the output of the epoch, without that of dead letters; none if its attempt or the definition
    of that is not on record."""
    if epoch == ADOPTED:
        return [one for one in adopted_in(checkpoint, key, beside=beside) if not one.is_of_letters]
    made, wrote = checkpoint.attempts.made(key, epoch), list[RecordedTable]()
    with suppress(CheckpointError, DefinitionError):
        if made is not None and made.definition is not None:
            wrote = recorded_tables(checkpoint, made.definition, beside=beside)
    return [one for one in wrote if not one.is_of_letters]


def _is_ours(checkpoint: Checkpoint, sink: OpenSink, one: RecordedTable) -> bool:
    return any(_is_of(checkpoint, table, one) for table in sink.tables)


def _is_of(checkpoint: Checkpoint, table: OpenSink, one: RecordedTable) -> bool:
    return one.place is not None and table.is_written_by(one.place, checkpoint.tables)
