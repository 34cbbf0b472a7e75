"""Whether the table is where it was: a pipeline's sink may have another address now, or a table's folder be away.

A sink looks by itself for a table that the checkpoint knows by an id (``checkpoint.tables``): a caller that asks the
sink or writes to it gives it the known ids. This module has the checks for tables without an id on record, and puts ids
on record.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from shlex import quote

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.key import LETTERS, LIVE, BatchKey
from airflow_provider_microbatch.exceptions import ForeignBatchError, SinkError
from airflow_provider_microbatch.execution.forgetting import check_entries_known
from airflow_provider_microbatch.execution.identity import (
    expected_on_record,
    of_own_checkpoint,
)
from airflow_provider_microbatch.execution.kept_states import gone_on
from airflow_provider_microbatch.execution.newest import newest_published
from airflow_provider_microbatch.execution.not_elsewhere import check_not_elsewhere, contains
from airflow_provider_microbatch.execution.published_to import (
    LEFT_OUT,
    newest_published_to,
    published_to,
    was_published_to,
)
from airflow_provider_microbatch.execution.rewind_named import rewind_over, rewindable
from airflow_provider_microbatch.execution.table_gap import TableGap, gap_below, known_before, numbers
from airflow_provider_microbatch.execution.table_shape import check_shape
from airflow_provider_microbatch.sinks import ExpectedBatch, OpenSink, Sink

log = logging.getLogger(__name__)


def check_there(checkpoint: Checkpoint, sink: OpenSink) -> None:
    """Check that the table is not away while batches are committed that were published there: output that is written in
    its place meanwhile would be hidden as soon as the table is back.

    :raises SinkError: if the table seems to be away.
    """
    for table in sink.tables:
        away = table.seems_away(checkpoint.tables)
        key = None if away is None else next(_newest(checkpoint, table, beside=sink), None)
        if key is not None:
            raise SinkError(f"batch {key} is committed, and {away}")


def check_none_lost(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey) -> None:
    """Check that the table knows the newest batch that was published there, if it is a table that remembers: it may
    have been restored from an older backup, made anew under its name, or be another branch. Output on top of it would
    hide that rows are gone. Any table that keeps batches must not have a batch of another plan there.

    :param key: the batch that is about to be made, or made again: the newest batch before it counts. Of several batches
        that are gone, the last one must not come back alone: the table would know the newest batch then, and no run
        would miss the others. For a batch of an interval, whose lane has no batch before, the live lane counts too, and
        the lane of the interval before.
    :raises SinkError: if the table does not know the batch.
    :raises ForeignBatchError: if it has a batch of another plan in its place.
    :raises CheckpointError: if the batch leaves out rows by an entry that the checkpoint has lost: the next has them.
    """
    tables = [table for table in sink.tables if _may_be_asked(table.definition)]
    if not tables:
        return
    before = newest_published(checkpoint, key.lane, below=key.id)
    live = newest_published(checkpoint, LIVE) if key.lane != LIVE else None
    for table in tables:
        for found in filter(None, (before, live)):
            _check_knows(checkpoint, table, found, beside=sink)
        for found in _of_lanes_before(checkpoint, key):
            if _check_knows(checkpoint, table, found, beside=sink):
                break  # else the pipeline has left the table out for that interval: the one before it tells
    newest = newest_published(checkpoint, key.lane) if before is None and key.id > 0 else None
    if newest is not None:
        for table in tables:
            _check_no_gap(checkpoint, table, newest, beside=sink)


def _may_be_asked(table: Sink) -> bool:
    return table.remembers_batches or (table.keeps_batches and table.is_cheap_to_ask)


def _of_lanes_before(checkpoint: Checkpoint, key: BatchKey) -> Iterator[BatchKey]:
    """The newest published batch of each interval before, the latest first, of a batch of an interval. Only of earlier
    ones: of two lanes that are gone one has to be the first to come back. As many as are looked at in the live lane:
    whoever asks stops at the first one that tells."""
    if key.lane != LIVE:
        others = (name for name in reversed(checkpoint.lanes()) if name not in (LIVE, LETTERS) and name < key.lane)
        published = filter(None, (newest_published(checkpoint, name) for name in others))
        yield from islice(published, LEFT_OUT)


def _check_knows(checkpoint: Checkpoint, table: OpenSink, key: BatchKey, *, beside: OpenSink) -> bool:
    """Check that the table knows the batch, or, if that was not published there, the one before it that was. False if
    there is none: nothing of the lane is to be in the table."""
    if _knows(checkpoint, table, key, beside=beside) or not table.definition.remembers_batches:
        return True
    wrote = published_to(checkpoint, key, beside=beside)
    unmerged = next(filter(None, (table.unmerged(_on_record(checkpoint, key), one) for one in wrote)), None)
    if unmerged is None and not any(table.is_written_by(one, checkpoint.tables) for one in wrote):
        earlier = newest_published_to(checkpoint, key, table, beside=beside)
        return earlier is not None and _check_knows(checkpoint, table, earlier, beside=beside)
    if (left := table.unrecorded(rewindable(checkpoint, _on_record(checkpoint, key), beside), wrote)) is not None:
        # Its rows are there, so nothing is lost. A clear before a later batch leaves that one as the newest, which the
        # next run asks for; on top of this one, a batch would hide it.
        if key == newest_published(checkpoint, key.lane):
            raise SinkError(f"batch {key} is committed. {left}")
        return True
    known = max(known_before(checkpoint, table, key), default=-1)
    rewind = rewind_over(checkpoint, beside, key.lane, known, lost=table)
    lost = numbers(known + 1, key.id)
    if unmerged is not None:
        again = f" {rewind} has {lost} run again here: first it takes them out of where they are."
        raise SinkError(f"batch {key} is committed, and {unmerged}{again if rewind else ''}")
    gap = gap_below(checkpoint, table, key.lane, beside=beside)
    if gap is not None and gap.were_here:
        raise SinkError(_gone(checkpoint, table, key, gap, beside=beside))
    untold = "" if gap is None else f" Whether it had {gap} too, nobody can tell. {gap.ways_on()}"
    refused = beside.definition.not_replaceable() or gone_on(checkpoint, [beside], key, after=known)
    clears = "the oldest first" if refused is None else f"the oldest first (refused as the pipeline is now: {refused})"
    again = (
        f"; or {rewind} has them run again. What the sources cannot give again either, that rewind gives up and names "
        "with --allow-skip"
    )
    raise SinkError(
        f"{_unknown(table, key, beside=beside)} What it had of {lost} is in no table.{untold} "
        f"`microbatch check {quote(checkpoint.location)} --table` names them: clear their tasks, {clears}"
        f"{again if rewind else ''}. Or bring the table back as it was."
    )


def _check_no_gap(checkpoint: Checkpoint, table: OpenSink, key: BatchKey, *, beside: OpenSink) -> None:
    """Check that nothing is missing before a batch that has no published one before it on record, since retention has
    removed those: once it is in, the table knows the newest batch before the next one, and nobody misses the others.

    :param key: the lane's newest published batch.
    """
    if not table.definition.remembers_batches:
        return
    with suppress(ForeignBatchError):  # whoever makes a batch after that one is told that
        if _knows(checkpoint, table, key, beside=beside):
            return
        had: BatchKey | None = key
        if not was_published_to(checkpoint, key, table, beside=beside):
            had = newest_published_to(checkpoint, key, table, beside=beside)
        if had is None or _knows(checkpoint, table, had, beside=beside):
            return
        gap = gap_below(checkpoint, table, key.lane, beside=beside)
        if gap is not None and gap.were_here:
            raise SinkError(_gone(checkpoint, table, had, gap, beside=beside))


def _gone(checkpoint: Checkpoint, table: OpenSink, key: BatchKey, gap: TableGap, *, beside: OpenSink) -> str:
    kept = numbers(gap.last + 1, key.id)
    return (
        f"{_unknown(table, key, beside=beside)} Of {gap} no log tells any more what was read, since retention has "
        "removed that: no clear and no rewind brings it back, and a batch on top would hide that it is gone. So none "
        f"is written, nor {kept} again. {gap.ways_on()} `microbatch check {quote(checkpoint.location)} --table` says "
        "so until then."
    )


def _unknown(table: OpenSink, key: BatchKey, *, beside: OpenSink) -> str:
    is_one_of_several = len(beside.tables) > 1
    unnamed = ", or the pipeline did not name it when its output was published" if is_one_of_several else ""
    return (
        f"batch {key} is committed, and {table.location()} does not know it: the table was made anew, or restored from "
        f"a backup of before{unnamed}."
    )


def _knows(checkpoint: Checkpoint, table: OpenSink, key: BatchKey, *, beside: OpenSink) -> bool:
    """Whether the table has the newest published batch. If it has one of another plan instead, there or as its newest
    before, another copy of the checkpoint goes on there, or did before this one was restored, and its batches have rows
    that this one would read once more: no clear, and no batch, may come on top of that.

    :raises ForeignBatchError: if it has.
    """
    try:
        if (found := table.contains(_on_record(checkpoint, key))) is not None:
            check_entries_known(checkpoint, found, what="nothing was made on top of it")
            return True
        last = next(_not_counted_over(checkpoint, table, key), None)
        # One that retention has taken out of the logs cannot be told from one of another plan.
        if last is not None and checkpoint.lane(key.lane).offset_log.has(last):
            table.contains(of_own_checkpoint(_on_record(checkpoint, BatchKey(key.lane, last))))
    except ForeignBatchError:
        if was_published_to(checkpoint, key, table, beside=beside):
            raise  # else this checkpoint has published no batch here yet
    return False


def _not_counted_over(checkpoint: Checkpoint, table: OpenSink, key: BatchKey) -> Iterator[int]:
    """Numbers of the table's batches before this one, the last first, without those that a command has counted over:
    they are another's by somebody's word."""
    numbers = sorted(known_before(checkpoint, table, key), reverse=True)
    return (number for number in numbers if not checkpoint.lane(key.lane).is_position(number))


def make_ready(checkpoint: Checkpoint, sink: OpenSink, attempt: Attempt, *, shape_is_checked: bool = False) -> None:
    """Call :meth:`OpenSink.make_ready` and :meth:`OpenSink.begin`. A table of a checkpoint from before ids gets an id
    on record as soon as it has shown the newest batch that was published there.

    :param shape_is_checked: this process has planned, and has checked then that the table stays one table.
    :raises SinkError: if the table is away, cannot be written, or has batches of another form: the definition may have
        changed since the batch was planned, or only the task after the plan may have been cleared. Or if an earlier
        attempt may have published the batch to another table, and died before its commit.
    """
    check_there(checkpoint, sink)
    check_none_lost(checkpoint, sink, attempt.key)
    check_not_elsewhere(checkpoint, sink, attempt.key)
    if not shape_is_checked:
        check_shape(checkpoint, sink, lane=attempt.key.lane)
    for table in sink.tables:
        table.make_ready(checkpoint.tables, is_there=partial(_is_there, checkpoint, table, beside=sink))
    sink.begin(attempt.batch, attempt.epoch)


def _is_there(checkpoint: Checkpoint, table: OpenSink, *, beside: OpenSink) -> bool:
    newest = list(_newest(checkpoint, table, beside=beside))
    try:
        return not newest or any(contains(checkpoint, table, key) for key in newest)
    except SinkError:
        return False


def _newest(checkpoint: Checkpoint, table: OpenSink, *, beside: OpenSink) -> Iterator[BatchKey]:
    """The newest batch of each lane that was published, if it was to this place. A table that has come from another
    place is there if it shows its id: it may have been put there by a backup that lacks the batch, which a clear brings
    back."""
    for lane in checkpoint.lanes():
        newest = newest_published(checkpoint, lane)
        wrote = [] if newest is None else published_to(checkpoint, newest, beside=beside)
        if newest is not None and any(map(table.definition.is_same_place, wrote)):
            yield newest


def check_recorded(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey) -> None:
    """Check that a batch that is to be replayed is not in a table that has lost its record of the batch.

    :raises SinkError: if it is: its rows would be there twice.
    """
    left = unrecorded(checkpoint, sink, _on_record(checkpoint, key))
    if left is not None:
        raise SinkError(f"batch {key} is committed. {left} Nothing was published.")


def unrecorded(checkpoint: Checkpoint, sink: OpenSink, batch: ExpectedBatch) -> str | None:
    """See :meth:`OpenSink.unrecorded`, which is asked of each of the sink's tables.

    :raises SinkError: if one cannot tell.
    :raises CorruptEntryError: if an entry cannot be read.
    """
    wrote = published_to(checkpoint, batch.key, beside=sink)
    batch = rewindable(checkpoint, batch, sink)
    return next(filter(None, (table.unrecorded(batch, wrote) for table in sink.tables)), None)


def _on_record(checkpoint: Checkpoint, key: BatchKey) -> ExpectedBatch:
    return expected_on_record(checkpoint, key, tables=checkpoint.tables)
