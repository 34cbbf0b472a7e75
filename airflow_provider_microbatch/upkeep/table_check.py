"""Checks whether the table has the batches that the logs record, for ``microbatch check``. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from shlex import quote

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.verify import Finding
from airflow_provider_microbatch.exceptions import (
    CheckpointError,
    DefinitionError,
    ForeignBatchError,
    RolledBackError,
    SinkError,
    UnconnectedError,
)
from airflow_provider_microbatch.execution.came_back import all_back, told_of
from airflow_provider_microbatch.execution.forgetting import told_of_lost
from airflow_provider_microbatch.execution.identity import (
    expected,
    found_in,
    is_of_another_plan,
    is_of_one_attempt,
    latest_in,
    planned_identity,
    seen_in,
)
from airflow_provider_microbatch.execution.liveness import Held, held_as
from airflow_provider_microbatch.execution.other_lives import another_life, first_of_another_life
from airflow_provider_microbatch.execution.published_to import was_published_to
from airflow_provider_microbatch.execution.set_aside import is_aside
from airflow_provider_microbatch.execution.table_gap import gap_below
from airflow_provider_microbatch.execution.table_place import unrecorded
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, OpenSink
from airflow_provider_microbatch.upkeep.batch_back import batch_back
from airflow_provider_microbatch.upkeep.commands.site import Recorded, is_among, tables_of
from airflow_provider_microbatch.upkeep.gone_tables import GoneTables
from airflow_provider_microbatch.upkeep.next_place import look_at_next, unconnected
from airflow_provider_microbatch.upkeep.state_check import check_state, check_watermarks
from airflow_provider_microbatch.upkeep.taken_away import taken_away

SAMPLE = 20
"""Number of batches that are looked up unless all are asked for: half of them the newest."""

_BACK_FIRST = "First what is said above of rows that came back; then check again."


@dataclass(frozen=True, kw_only=True)
class TableCheck:
    """The result of a look at the table.

    :param findings: empty if all is well.
    :param asked: how many batches were looked up.
    :param of: how many batches the table should have.
    :param unasked: why the table, or a part of it, was not looked at; None if it was.
    :param notes: what is no finding, in words: of tables that are gone, and that nobody misses.
    """

    findings: Sequence[Finding]
    asked: int
    of: int
    unasked: str | None = None
    notes: Sequence[str] = ()


def check_table(checkpoint: Checkpoint, *, everything: bool) -> TableCheck:
    """Look up committed batches in the sinks on record, and check whether a foreign batch is at the place of the next
    batch.

    :param everything: look up all batches, and ask also sinks that need a server; else a sample, in sinks that are
        cheap to ask.
    """
    committed = list(_committed(checkpoint))
    recorded = Recorded(checkpoint)
    try:
        identity, sinks = checkpoint.identity(), recorded.sinks()
    except (CheckpointError, DefinitionError) as error:
        if everything and committed:
            return TableCheck(findings=[_unasked(checkpoint, error)], asked=0, of=len(committed))
        return TableCheck(findings=[], asked=0, of=len(committed), unasked=str(error))
    if identity is None or identity.pipeline is None:
        return TableCheck(findings=[], asked=0, of=0, unasked="no pipeline has run here")
    dear = [sink.location() for sink in sinks if not sink.definition.is_cheap_to_ask]
    if dear and not everything:
        reason = f"it takes a server to ask {', '.join(dear)}; --table does"
        return TableCheck(findings=[], asked=0, of=len(committed), unasked=reason)
    if not all(sink.definition.keeps_batches for sink in sinks):
        # Each batch replaces the table: only the very last batch can be in it.
        committed = committed[-1:] if all(key.lane == LIVE for key in committed) else []
    asked = committed if everything else sample(committed)
    chosen = [batch for batch in (_to_be_there(checkpoint, key) for key in asked) if batch is not None]
    tables = tables_of(sinks) if everything else []
    back = [finding for table in tables for finding in _came_back(checkpoint, table)]
    marks, gone = dict[str, str](), GoneTables(recorded)
    looks = (_look(checkpoint, recorded, one, inside=everything, marks=marks, gone=gone) for one in chosen)
    found = list(dict.fromkeys(finding for look in looks for finding in look))
    of_batches = {finding.message for finding in found}
    whole = [finding for table in tables for finding in _whole(checkpoint, table, gone)]
    # Told of batches, it comes with the way on for each.
    findings = [finding for finding in whole if finding.message not in of_batches] + back
    findings += [finding for table in tables for finding in taken_away(checkpoint, table)]
    # Beside rows that came back each clear is refused, and a rewind that does not go so far.
    findings += [replace(one, repair=_BACK_FIRST) for one in found] if back else found
    told = {finding.message for finding in findings}
    findings += [finding for finding in look_at_next(checkpoint, sinks, gone) if finding.message not in told]
    findings += [finding for table in tables for finding in _strays(checkpoint, table)]
    findings += _erased_elsewhere(checkpoint, marks)
    findings += check_state(checkpoint, recorded)
    findings += check_watermarks(checkpoint, recorded) if everything else []
    of = len(committed) - len(asked) + len(chosen)
    return TableCheck(findings=findings, asked=len(chosen), of=of, notes=gone.told())


def _erased_elsewhere(checkpoint: Checkpoint, marks: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about rows that batches leave out, and whose entries of `microbatch forget` the checkpoint has lost.

    :param marks: of the entries, each with the table of such a batch.
    """
    with suppress(CheckpointError):  # each attempt is refused for an entry that cannot be read
        for mark in checkpoint.forgotten.lost(marks):
            told, repair = told_of_lost(checkpoint, [mark])
            message = f"{marks[mark]} has batches, each of which {told}"
            yield Finding(kind="table", where=marks[mark], message=message, repair=repair)


def _whole(checkpoint: Checkpoint, table: OpenSink, gone: GoneTables) -> Iterator[Finding]:
    """A finding about a table that somebody has put, as a whole, into another state."""
    try:
        table.check_whole()
    except SinkError as error:
        if table.seems_away(checkpoint.tables) is not None or gone.has(table, checkpoint.tables):
            return  # the look at its batches reports it, if anybody misses it
        if isinstance(error, UnconnectedError):
            yield unconnected(table, error)
        else:
            repair = "Do that before all else, then check again; until then the pipeline plans nothing."
            yield Finding(kind="table", where=table.location(), message=str(error), repair=repair)


def _strays(checkpoint: Checkpoint, table: OpenSink) -> Iterator[Finding]:
    """Findings about things that readers of the table see beside its batches."""
    try:
        found = table.strays(checkpoint.tables)
    except (SinkError, CheckpointError):
        return  # the look at its batches reports the error
    for stray in found:
        yield Finding(
            kind="stray",
            where=table.location(),
            message=f"{stray}. Readers of the table see what is in it.",
            repair="Look whose it is: another program's that writes here, or a copy or a restore that was cut off. "
            "Move it out of the table; a batch whose place it takes is made again by clearing its task.",
        )


def _came_back(checkpoint: Checkpoint, table: OpenSink) -> Iterator[Finding]:
    """Findings about rows that a rewind has taken out, and that are in the table again, whatever is on record of it."""
    with suppress(SinkError, CheckpointError):  # the look at its batches reports the error
        lanes = dict.fromkeys((*checkpoint.lanes(), *checkpoint.maintenance.taken_out()))
        for lane in set(table.lanes(checkpoint.tables) or ()).intersection(lanes):
            back = all_back(checkpoint, table, lane, checkpoint.tables)
            if back:
                told = told_of(checkpoint, table, lane, back)
                yield Finding(kind="table", where=table.location(), message=told, repair="Do that, then check again.")


def sample(keys: Sequence[BatchKey]) -> list[BatchKey]:
    """The newest batches, and a constant choice of others, evenly spread over the rest."""
    newest = keys[-(SAMPLE // 2) :]
    rest = keys[: len(keys) - len(newest)]
    step = max(len(rest) // (SAMPLE // 2), 1)
    return [*rest[::step][: SAMPLE // 2], *newest]


def _committed(checkpoint: Checkpoint) -> Iterator[BatchKey]:
    """Committed batches, the live lane's last, with those of which :func:`_to_be_there` tells that they are in no
    table."""
    for name in reversed(checkpoint.lanes()):
        lane = checkpoint.lane(name)
        planned = set(lane.offset_log.ids())
        yield from (BatchKey(name, number) for number in lane.commit_log.ids() if number in planned)


def _to_be_there(checkpoint: Checkpoint, key: BatchKey) -> BatchIdentity | None:
    """The batch, if the table is to have it; None for a batch that was set aside, a position that was set by hand, and
    one of a streaming query, which wrote to its own table."""
    try:
        commit, batch = checkpoint.lane(key.lane).commit_log.get(key.id), planned_identity(checkpoint, key)
        if commit is None or (commit.epoch is None and not commit.set_aside):
            return None
        by_hand = commit.set_aside and not commit.failure
        return None if by_hand or is_aside(checkpoint, key, commit) else batch
    except CheckpointError:
        return None  # the logs' own findings report the error


def _look(
    checkpoint: Checkpoint,
    recorded: Recorded,
    batch: BatchIdentity,
    *,
    inside: bool,
    marks: dict[str, str],
    gone: GoneTables,
) -> Iterator[Finding]:
    """Findings about a batch that is to be there.

    :param marks: gets the marks of what the batch leaves out, each with its table.
    :param gone: gets the tables that had the batch, and that nobody misses.
    """
    key = batch.key
    lane, sinks = checkpoint.lane(key.lane), recorded.sinks()
    try:
        failed: list[tuple[OpenSink, SinkError]] = []
        asked = replace(expected(checkpoint, batch), tables=checkpoint.tables.following_moves)
        for sink in sinks:
            try:
                found = sink.contains(asked)
                marks |= dict.fromkeys(() if found is None else found.forgotten, sink.location())
                if found is not None and (
                    not (recorded.is_part(sink, found) or _was_in_more(checkpoint, recorded, sink, batch))
                    or gone.have_the_rest(sink, asked)
                ):
                    latest = latest_in(sink, asked) or found
                    if not (
                        is_of_one_attempt(sink, asked, found)
                        or _came_back_alone(checkpoint, recorded, sink, asked, latest)
                    ):
                        yield _of_two_attempts(checkpoint, recorded, sink, asked)
                    elif inside:
                        yield from _look_inside(checkpoint, recorded, sink, asked, latest)
                    return
            except SinkError as error:
                failed.append((sink, error))  # another sink may have the batch
        # If another table is unavailable, or was dropped long ago, that tells nothing about this batch.
        wrote = recorded.sinks_of(key)
    except CheckpointError:
        return  # the logs' own findings report the error
    told = next((error for sink, error in failed if sink in wrote), None)
    if isinstance(told, UnconnectedError):
        yield unconnected(next(sink for sink, error in failed if error is told), told)
        return
    if isinstance(told, (ForeignBatchError, RolledBackError)):
        repair = "Choose one of the ways on; a clear of its task is refused until then."
        yield Finding(kind="table", where=lane.commit_log.where(key.id), message=str(told), repair=repair)
        return
    silent = [sink for sink, _ in failed]
    asked_for = tables_of([sink for sink in sinks if sink not in silent])
    missing = [table for table in asked_for if found_in(table, asked) is None]
    tables = " nor in ".join(table.location() for table in missing)
    is_partly = any(seen_in(table, asked) is not None for table in missing)
    there = "readers find only a part of its rows there" if is_partly else "its rows are missing"
    message = str(told) if told else f"batch {key} is committed and not in {tables}: {there}."
    repair = batch_back(checkpoint, recorded, key)
    if missing and any(len(sink.tables) > 1 for sink in wrote):
        repair += f" A clear writes to what the pipeline names by then: see that {tables} is among it."
    away = next(filter(None, (sink.seems_away(asked.tables) for sink in wrote)), None)
    if away is not None:
        # The unavailable table may have the batch: run again, the batch would be in two tables.
        message = str(told or f"batch {key} is committed, and {away}")
        repair = "Bring the table back, then check again."
    elif told is not None:
        # Such as a folder that another batch is in: a clear is refused while it is there.
        repair = f"Mend that first, as it says. If the batch is not in then: {repair}"
    elif (left := _unrecorded(checkpoint, asked_for, asked)) is not None:
        message, repair = (
            f"batch {key} is committed. {left}",
            "Choose one of the ways on; a clear is refused until then.",
        )
    else:
        others = (_other_life(checkpoint, table, key) for table in asked_for)
        other = next((first for first in others if first is not None), None)
        if other is not None:
            repair = another_life(checkpoint, key, other)
        gaps = [finding for table in missing for finding in _gap(checkpoint, table, key, beside=sinks[0])]
        yield from gaps
        if gaps:
            repair = f"First what is said above of those before it. Then: {repair}"
    yield Finding(kind="table", where=lane.commit_log.where(key.id), message=message, repair=repair)


def _was_in_more(checkpoint: Checkpoint, recorded: Recorded, sink: OpenSink, batch: BatchIdentity) -> bool:
    """Whether an attempt that was published put the batch, as it is planned now, into all tables of ``sink`` and into
    others: it was replayed since while the pipeline named fewer."""
    wider = [one for one in recorded.usable() if _has_more(one, sink)]
    for attempt in checkpoint.attempts.all(batch.key) if wider else ():
        end = checkpoint.attempts.ended(attempt.key, attempt.epoch)
        if end is None or end.state != "succeeded" or is_of_another_plan(attempt, batch):
            continue
        wrote = recorded.sink_of(attempt)
        if wrote is not None and _has_more(wrote, sink):
            return True
    return False


def _came_back_alone(
    checkpoint: Checkpoint, recorded: Recorded, sink: OpenSink, asked: ExpectedBatch, latest: Manifest
) -> bool:
    """Whether the newest attempt of those that the tables of ``sink`` have wrote to fewer of them, all of which have
    it, and the pipeline names none of the others any more: what a table had lost was put back there beside these.

    :param latest: that attempt's manifest.
    """
    attempt = checkpoint.attempts.get(latest.key, latest.epoch)
    wrote = None if attempt is None else recorded.sink_of(attempt)
    if wrote is None:
        return False

    def has_it(table: OpenSink) -> bool:
        found = found_in(table, asked)
        return found is not None and found.epoch == latest.epoch

    others = [table for table in sink.tables if not is_among(table, wrote.tables)]
    named = tables_of(recorded.today(asked.key.lane))
    return all(map(has_it, wrote.tables)) and not any(is_among(table, named) for table in others)


def _has_more(sink: OpenSink, other: OpenSink) -> bool:
    """Whether a sink has all tables of the other one, and more, beside one of dead letters, which a pipeline may send
    no more."""
    letters = sink.definition.dead_letters
    more = [table for table in sink.tables if not is_among(table, other.tables)]
    is_all = all(is_among(table, sink.tables) for table in other.tables)
    return is_all and any(letters is None or not table.definition.is_same_place(letters) for table in more)


def _gap(checkpoint: Checkpoint, table: OpenSink, key: BatchKey, *, beside: OpenSink) -> Iterator[Finding]:
    """A finding about batches that the table lacks before the oldest that is kept, if the oldest of those that it had
    is missing too."""
    with suppress(SinkError, CheckpointError):  # other findings report the error
        log = checkpoint.lane(key.lane).offset_log
        before = (BatchKey(key.lane, number) for number in log.ids() if number < key.id)
        had = partial(was_published_to, checkpoint, table=table, beside=beside)
        if not had(key=key) or any(had(key=one) for one in before):
            return
        gap = gap_below(checkpoint, table, key.lane, beside=beside)
        if gap is None:
            return
        tidied = "" if table.definition.remembers_batches else " If somebody has tidied it up, nothing is to be done."
        told = f"whether {table.location()} had {gap}, nobody can tell"
        if gap.were_here:
            told = f"{gap} is not in {table.location()} either, and no log tells any more what was read there"
        yield Finding(
            kind="table",
            where=log.location,
            message=f"{told}, since retention has removed that (lane {key.lane}).",
            repair=f"{gap.ways_on()}{tidied}",
        )


def _unrecorded(checkpoint: Checkpoint, tables: Sequence[OpenSink], asked: ExpectedBatch) -> str | None:
    with suppress(SinkError, CheckpointError):
        return next(filter(None, (unrecorded(checkpoint, table, asked) for table in tables)), None)
    return None


def _other_life(checkpoint: Checkpoint, table: OpenSink, key: BatchKey) -> int | None:
    try:
        return first_of_another_life(checkpoint, table, key)
    except SinkError:
        return None


def _of_two_attempts(checkpoint: Checkpoint, recorded: Recorded, sink: OpenSink, asked: ExpectedBatch) -> Finding:
    key = asked.identity.key
    parts = [(table, one) for table in sink.tables if (one := found_in(table, asked)) is not None]
    told = " and ".join(f"{table.location()} has it of attempt {one.epoch}" for table, one in parts)
    return Finding(
        kind="table",
        where=checkpoint.lane(key.lane).commit_log.where(key.id),
        message=f"batch {key} is to be of one attempt in all tables, and {told}: a replay was cut off between "
        "them, or one of them was not named then.",
        repair=f"{_finished_by(checkpoint, key, max(one.epoch for _, one in parts))} Else: "
        f"{batch_back(checkpoint, recorded, key)}",
    )


def _finished_by(checkpoint: Checkpoint, key: BatchKey, epoch: int) -> str:
    """Who publishes the rest of an attempt's stage."""
    attempt = checkpoint.attempts.get(key, epoch)
    if attempt is not None and attempt.run is not None and held_as(checkpoint, key, epoch) is Held.STAGED:
        return (
            f"Clear the commit task of run {attempt.run.run_id!r} of DAG {attempt.run.dag_id!r} alone, which finishes "
            "it while its stage is there: the janitor leaves that to the audits until their time is over."
        )
    return f"`microbatch janitor {quote(checkpoint.location)}` finishes it while its stage is there."


def _look_inside(
    checkpoint: Checkpoint, recorded: Recorded, sink: OpenSink, asked: ExpectedBatch, found: Manifest
) -> Iterator[Finding]:
    """Findings where the batch's files differ from those that its manifest names, or do not come from the attempt that
    was published last."""
    key, told = asked.key, list[str]()
    for table in sink.tables:
        differs = _damage(table, asked)
        if differs is not None:
            told.append(f"batch {key} in {table.location()} is not what was published ({differs}).")
    # An adopted batch counts as older than all attempts of this checkpoint.
    later = [epoch for epoch in checkpoint.attempts.epochs.all(key) if 0 < found.epoch < epoch]
    ends = {epoch: checkpoint.attempts.ended(key, epoch) for epoch in later}
    published = [epoch for epoch, end in ends.items() if end is not None and end.state == "succeeded"]
    if published:
        told.append(
            f"batch {key} in {sink.location()} is attempt {found.epoch}'s, and attempt {max(published)} has replaced "
            "that since: the table, or this batch of it, was restored from before the replay."
        )
    for message in told:
        yield Finding(
            kind="table",
            where=checkpoint.lane(key.lane).commit_log.where(key.id),
            message=message,
            repair=batch_back(checkpoint, recorded, key),
        )


def _damage(table: OpenSink, asked: ExpectedBatch) -> str | None:
    """How the batch's files differ from those that its manifest names; None if they do not. A replay or a compaction
    may exchange both between the two looks, which is no damage."""
    part = found_in(table, asked)
    while part is not None:
        differs = table.damage(asked, part)
        now = None if differs is None else found_in(table, asked)
        if now is None or now == part:
            return differs
        part = now
    return None


def _unasked(checkpoint: Checkpoint, error: Exception) -> Finding:
    return Finding(
        kind="table",
        where=checkpoint.location,
        message=f"the table could not be asked: {error}",
        repair="Mend that, then check again.",
    )
