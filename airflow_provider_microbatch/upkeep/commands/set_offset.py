"""Set a source's position by hand: by one more batch, which reads nothing and records that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import ForeignBatchError, MaintenanceError, SinkError, SourceError
from airflow_provider_microbatch.execution.newest import first_in_a_row
from airflow_provider_microbatch.execution.position import read_position, starts_of
from airflow_provider_microbatch.execution.set_aside import all_aside
from airflow_provider_microbatch.execution.unknown_batches import check_next, check_none_unknown
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.upkeep.commands.encoding import (
    encoded_offsets,
    encoded_position_commit,
    entry_by_hand,
)
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.rename_source import check_not_half_renamed
from airflow_provider_microbatch.upkeep.commands.site import Recorded
from airflow_provider_microbatch.upkeep.commands.stateless import check_stateless
from airflow_provider_microbatch.upkeep.commands.steps import Keep


def plan_set_offset(
    drafting: Drafting, *, lane: str, source: str, offset: Offset | None, allow_skip: bool, allow_reread: bool
) -> Plan:
    """The plan after which the next batch begins at ``offset``. The logs only grow: the batch in between is set aside.

    :param lane: the lane.
    :param source: name of the source.
    :param offset: the position, in the form of the source's offsets; None for before anything.
    :param allow_skip: accept that the data in between is lost.
    :param allow_reread: accept that data that was read already is read and published again.
    :raises MaintenanceError: if the logs are not ready for it, or if rows would be lost or doubled without permission.
    :raises SourceError: if the offset is not one of the source's, or the source cannot be asked.
    """
    checkpoint = drafting.checkpoint
    check_not_half_renamed(checkpoint)
    position = read_position(checkpoint.lane(lane))
    if position.latest is None and lane != LIVE:
        raise MaintenanceError(
            f"{checkpoint.location} has no batch in lane {lane} yet, so there is no position to set."
        )
    if position.planned is not None:
        raise MaintenanceError(
            f"batch {position.batch_id} of lane {lane} is planned and not committed. Let the pipeline finish it, or "
            f"rewind to {position.batch_id - 1} first."
        )
    recorded = Recorded(checkpoint)
    check_stateless(checkpoint, recorded)
    opened = recorded.source_to_come(source, lane=lane)
    if opened is None:
        known = ", ".join(recorded.names_to_come(lane)) or "none"
        raise MaintenanceError(f"the pipeline on record has no source {source!r}; it has {known}.")
    by = recorded.who_defines(lane)
    with _saying(f"Source {source!r} was asked {by}"):
        if offset is not None:
            opened.check_offset(offset)
        before = position.committed.get(source)
        if offset == before:
            return drafting.plan()
        _check_aside(checkpoint, lane, opened, source, offset)
        _check_tables(drafting, recorded, BatchKey(lane, position.batch_id), allow_reread=allow_reread)
        number, folder = position.batch_id, "" if lane == LIVE else f"lanes/{lane}/"
        why = f"the next batch begins source {source!r} at {_show(offset)}, after {_show(before)}"
        names = recorded.names_to_come(lane)
        entry = entry_by_hand(drafting, position, sources=names, ends={source: offset})
        # First of all: if a run has planned at this moment, the command has not done anything yet, and can end without
        # effect.
        before_it = f"{folder}commits/{number - 1}" if number > 0 else None
        planned = encoded_offsets(drafting, lane, entry)
        drafting.write(f"{folder}offsets/{number}", planned, why, after=before_it)
        _check_direction(
            drafting, opened, lane, source, before, offset, allow_skip=allow_skip, allow_reread=allow_reread
        )
    since = first_in_a_row(checkpoint.lane(lane).commit_log, number)
    commit = encoded_position_commit(drafting, entry, planned=planned, since=since)
    drafting.write(f"{folder}commits/{number}", commit, "set by hand: nothing of it is in the table")
    drafting.note(f"source {source!r} was asked {by}")
    return drafting.plan()


@contextmanager
def _saying(by: str) -> Iterator[None]:
    """Have a source's refusal say by which definition the source was asked: the definition may be the reason."""
    try:
        yield
    except SourceError as error:
        raise SourceError(f"{error} {by}") from error


def _check_aside(checkpoint: Checkpoint, lane: str, opened: OpenSource, source: str, offset: Offset | None) -> None:
    """Check that no set-aside batch has a range behind ``offset``: the batch stays replayable, so rows that are read
    again before its replay would come twice."""
    log = checkpoint.lane(lane).offset_log
    for number in all_aside(checkpoint, lane):
        entry = log.get(number)
        if entry is None or starts_of(checkpoint.lane(lane), number, entry).get(source) == entry.ends.get(source):
            continue
        if opened.is_after(entry.ends.get(source), offset) is not False:
            raise MaintenanceError(
                f"batch {lane}/{number} is set aside, and its range of source {source!r} would be read again from "
                f"{_show(offset)} on: a clear of its task would bring its rows a second time. Clear the task first, "
                f"which runs the batch, or rewind to {number - 1}."
            )


def _check_tables(drafting: Drafting, recorded: Recorded, key: BatchKey, *, allow_reread: bool) -> None:
    """Check, as a plan does, that the table has no unknown batch at the next number or behind it. Once this command has
    used up the number, no later plan would look there, and the rows that are read again would be in the table twice.

    The table that has refused a plan may be one that no attempt has written to: the checkpoint was restored from before
    the pipeline got it. There only what this checkpoint has published counts: a table may have been named by mistake.
    """
    wrote, (others, unusable) = recorded.wrote_last(key.lane), recorded.never_written
    for told in unusable:
        drafting.note(f"{told} It is not asked for batches that no log knows.")
    others = [sink for sink in others if sink not in wrote]
    for sink, only_own in [*((sink, False) for sink in wrote), *((sink, True) for sink in others)]:
        try:
            check_next(drafting.checkpoint, sink, key, only_own=only_own)
            check_none_unknown(drafting.checkpoint, sink, key, only_own=only_own)
        except ForeignBatchError as unknown:
            raise MaintenanceError(
                f"{unknown} Before that no position is set: its rows would be in it twice."
            ) from unknown
        except SinkError as away:
            if sink.definition.is_cheap_to_ask and not only_own:
                raise
            what = f"nobody has asked {sink.location()} for batches that no log knows: {away}"
            if not allow_reread:
                raise MaintenanceError(
                    f"{what} What it has of them would be in it twice. Nothing was done. Mend that, and run this "
                    "again; or go on without the look: --allow-reread."
                ) from away
            drafting.note(what)


def _check_direction(
    drafting: Drafting,
    opened: OpenSource,
    lane: str,
    source: str,
    before: Offset | None,
    offset: Offset | None,
    *,
    allow_skip: bool,
    allow_reread: bool,
) -> None:
    # Asked again where it begins, a class of the user's may answer with its newest data.
    begins = opened.initial_offset() if offset is None else offset
    after = opened.is_after(begins, before)
    if after is not False:
        figures = _figures(opened, before, begins)
        if not allow_skip:
            raise MaintenanceError(
                f"what source {source!r} has after {_show(before)} up to {_show(begins)}{figures} would never be read. "
                "Allow that with --allow-skip."
            )
        # `source.commit` of a later end must not remove data that no batch has read.
        drafting.keep(Keep(source=source, lane=lane, start=before, end=begins, why="what is skipped stays where it is"))
        drafting.note(f"lost to the table: source {source!r} after {_show(before)} up to {_show(begins)}{figures}.")
    if after is not True:
        figures = _figures(opened, offset, before)
        if not allow_reread:
            raise MaintenanceError(
                f"what source {source!r} has after {_show(offset)} up to {_show(before)}{figures} is in the table and "
                "would be in it twice. `microbatch rewind` takes it out first; else allow it with --allow-reread."
            )
        # Where nobody knows which of the two lies after the other, what is there now is read as it is.
        reason = opened.why_not_back(offset, before) if after is False else None
        if reason is not None:
            raise MaintenanceError(f"source {source!r} cannot be read again from {_show(offset)} on: {reason}")
        drafting.note(f"read again: source {source!r} after {_show(offset)} up to {_show(before)}{figures}.")


def _figures(opened: OpenSource, start: Offset | None, end: Offset | None) -> str:
    told = opened.between_in_words(start, end)
    return f" ({', '.join(f'{value:,} {name}' for name, value in told.items())})" if told else ""


def _show(offset: Offset | None) -> str:
    return "its beginning" if offset is None else offset
