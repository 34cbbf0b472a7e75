"""Look for batches in a table that its checkpoint does not know, behind the place of the planned batch.

A checkpoint that was restored from an older backup, or begun anew on a kept table, does not know that later batches
have read their ranges: it would read them again. If the next batch's number is free in the table, its place tells
nothing: that batch was set aside then, or has aged out since, or the later batches were of other lanes.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_microbatch.checkpoint.by_hand import is_position
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LETTERS, LIVE, BatchKey, is_lane
from airflow_provider_microbatch.exceptions import ForeignBatchError
from airflow_provider_microbatch.execution.came_back import check_none_came_back
from airflow_provider_microbatch.execution.identity import expected_next, of_own_checkpoint
from airflow_provider_microbatch.execution.other_lives import check_of_this_life
from airflow_provider_microbatch.sinks import OpenSink


def check_next(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey, *, only_own: bool) -> None:
    """Check that the place of the batch that is about to be planned is free in the table.

    :param only_own: leave output of other checkpoints to its owners.
    :raises ForeignBatchError: if it is not, naming the pipeline of the batch and the ways on.
    :raises SinkError: if the sink cannot tell.
    """
    asked = expected_next(checkpoint, key)
    sink.contains(of_own_checkpoint(asked) if only_own else asked)


def check_none_unknown(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey, *, only_own: bool = False) -> None:
    """Check that the table holds no batch behind the place of the batch that is about to be planned, and none in a lane
    of this checkpoint that the checkpoint does not know, nor rows that a rewind has taken out. One listing of the
    table; an unknown lane whose batches are not this checkpoint's is another pipeline's, which may write to the table.

    :param only_own: leave output of other checkpoints to its owners, also in the lane of ``key``.
    :raises ForeignBatchError: if the table does, naming the pipeline of the batch and the ways on.
    :raises SinkError: if a batch there has no manifest that can be read, or rows came back.
    """
    if not sink.definition.is_cheap_to_ask:
        return
    check_none_came_back(checkpoint, sink, key.lane)
    for table in sink.tables:
        if type(table).batches is OpenSink.batches:
            continue  # it cannot list its batches: only the next place in it is looked at
        # The table first: a batch that is published later was planned before, and the checkpoint shows it.
        _check_behind(checkpoint, sink, table, key.lane, key.id, newest=key.id - 1, only_own=only_own)
        lanes = [name for name in table.lanes(checkpoint.tables) or () if name != key.lane and is_lane(name)]
        known = set(checkpoint.lanes()) - {LIVE} if lanes else set()
        for name in lanes:
            if name not in known:
                newest = checkpoint.lane(name).offset_log.latest_id()
                newest = -1 if newest is None else newest
                # Nothing counts over the lane of an interval: it is taken out of the tables that let it go, alone.
                asked = sink if name == LETTERS else table
                _check_behind(checkpoint, asked, table, name, newest, newest=newest, only_own=True)


def check_letters_known(checkpoint: Checkpoint, sink: OpenSink) -> None:
    """Check that the table holds no dead letters that were run again by a batch of this checkpoint which the checkpoint
    does not know, or knows by another plan: nobody can tell whose letters it has. Where the lane is known no plan of
    another lane finds such a batch. One listing of the table, beside a look at the lane's newest batch.

    :raises SinkError: if the table does, with the way on; a batch that is another plan's is a foreign one.
    """
    if not sink.definition.is_cheap_to_ask:
        return
    check_none_came_back(checkpoint, sink, LETTERS)
    lane = checkpoint.lane(LETTERS)
    newest = lane.offset_log.latest_id()
    entry = None if newest is None else lane.offset_log.get(newest)
    if newest is not None and entry is not None and not is_position(entry):  # else a command has counted over it
        check_of_this_life(checkpoint, sink, BatchKey(LETTERS, newest))
    newest = -1 if newest is None else newest
    for table in sink.tables:
        if type(table).batches is OpenSink.batches:
            _check(checkpoint, sink, BatchKey(LETTERS, newest + 1), newest=newest, only_own=True)
        else:
            _check_behind(checkpoint, sink, table, LETTERS, newest, newest=newest, only_own=True)


def _check_behind(
    checkpoint: Checkpoint, sink: OpenSink, table: OpenSink, lane: str, behind: int, *, newest: int, only_own: bool
) -> None:
    """Check each batch that one table of the sink has there, in all of them: the ways on may be those of another."""
    for number in table.batches_after(lane, behind, checkpoint.tables):
        _check(checkpoint, sink, BatchKey(lane, number), newest=newest, only_own=only_own)


def _check(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey, *, newest: int, only_own: bool = False) -> None:
    asked = replace(expected_next(checkpoint, key), newest=newest)
    if only_own:
        asked = of_own_checkpoint(asked)
    try:
        sink.contains(asked)
    except ForeignBatchError:
        # Another run has planned and published the batch since this one looked: it is not foreign.
        if not checkpoint.lane(key.lane).offset_log.has(key.id):
            raise
