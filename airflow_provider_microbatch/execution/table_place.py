"""Whether the table is where it was: a pipeline's sink may have another address now, or a table's folder be away.

A sink looks by itself for a table that the checkpoint knows by an id (``checkpoint.tables``): a caller that asks the
sink or writes to it gives it the known ids. This module has the checks for tables without an id on record, and puts ids
on record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from shlex import quote

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import JOB, Attempt
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import LETTERS, LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.exceptions import CheckpointError, DefinitionError, ForeignBatchError, SinkError
from airflow_provider_microbatch.execution.forgetting import check_entries_known
from airflow_provider_microbatch.execution.identity import (
    expected_on_record,
    found_in,
    is_of_another_plan,
    of_own_checkpoint,
    planned_identity,
)
from airflow_provider_microbatch.execution.kept_states import gone_on
from airflow_provider_microbatch.execution.letters_taken import taken
from airflow_provider_microbatch.execution.newest import newest_published
from airflow_provider_microbatch.execution.published_to import (
    LEFT_OUT,
    adopted_in,
    newest_published_to,
    published_as,
    published_to,
    was_published_to,
)
from airflow_provider_microbatch.execution.published_together import given_beside, has_lost_alone
from airflow_provider_microbatch.execution.recorded_sinks import (
    RecordedTable,
    check_may_be_asked,
    places_of,
    recorded_tables,
)
from airflow_provider_microbatch.execution.rewind_named import rewind_over, rewindable
from airflow_provider_microbatch.execution.table_gap import TableGap, gap_below, known_before, numbers
from airflow_provider_microbatch.execution.table_shape import check_shape
from airflow_provider_microbatch.sinks import ExpectedBatch, OpenSink, Sink, SinkContext

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
        return not newest or any(_contains(checkpoint, table, key) for key in newest)
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
            or _contains(checkpoint, sink, key)
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

    may_be_there = name in _definitions(checkpoint, key, where=is_in_the_way) and not _contains(checkpoint, sink, key)
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
        raise SinkError(_not_asked(sink, key, before.location(), error)) from error
    away = other.seems_away(checkpoint.tables)
    if away is not None:
        if _is_one_of(checkpoint, sink, before) or _contains(checkpoint, sink, key):
            return
        raise SinkError(
            f"batch {key} was made for {other.location()}, and the pipeline writes to {sink.location()} now: if it "
            f"is there, its rows would be in both. Nobody can tell: {away}"
        )
    try:
        if other.is_gone() or not _contains(checkpoint, other, key):
            return
    except (DefinitionError, SinkError) as error:
        if _is_one_of(checkpoint, sink, before):
            return  # nobody reads the server of before any more, or its connection was removed
        raise SinkError(_not_asked(sink, key, before.location(), error)) from error
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


def _contains(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey) -> bool:
    return found_in(sink, _on_record(checkpoint, key)) is not None


def _on_record(checkpoint: Checkpoint, key: BatchKey) -> ExpectedBatch:
    return expected_on_record(checkpoint, key, tables=checkpoint.tables)


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
