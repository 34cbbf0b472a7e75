"""Batches that an earlier rewind has taken out, and that are in a table again: what the next one does about them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from shlex import quote

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import OffsetEntry
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import CorruptEntryError, MaintenanceError, SinkError, SourceChangedError
from airflow_provider_microbatch.execution.came_back import all_back, goes_back_to, is_left, keeps, taken_by, told_of
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.upkeep.commands.letters_out import made_anew
from airflow_provider_microbatch.upkeep.commands.lost_rows import lost_of_put_away
from airflow_provider_microbatch.upkeep.commands.plan import Drafting
from airflow_provider_microbatch.upkeep.commands.site import Recorded, tables_of
from airflow_provider_microbatch.upkeep.commands.steps import DropOutput


@dataclass(frozen=True, kw_only=True)
class BackAgain:
    """:param id: number of the batch.
    :param table: has rows of it.
    :param digests: of the plans that these are of; none if nobody can tell.
    """

    id: int
    table: OpenSink
    digests: Collection[str]


def back_again(checkpoint: Checkpoint, recorded: Recorded, *, lane: str, to: int) -> list[BackAgain]:
    """The batches of the lane that came back behind ``to``, whether or not the log has one under that number now. In
    a table to which the pipeline does not write any more they stay: nothing comes on top of them there.

    :raises MaintenanceError: if they may be of what batches up to ``to`` have read.
    :raises SinkError: if a table that is there, and that the pipeline writes to, cannot tell.
    """
    found = list[BackAgain]()
    for table in _usable(recorded):
        try:
            back = all_back(checkpoint, table, lane, checkpoint.tables.following_moves)
        except SinkError:
            # One that is away is told of as it is asked for its batches. Another is what plans are refused for.
            if table.seems_away(checkpoint.tables) is None and not is_left(checkpoint, table, lane):
                raise
            continue
        if not back or is_left(checkpoint, table, lane):
            continue
        enough = goes_back_to(checkpoint, lane, back)
        if enough is None or to > enough:
            raise MaintenanceError(f"{told_of(checkpoint, table, lane, back)} Nothing was done.")
        found += [BackAgain(id=id, table=table, digests=digests) for id, digests in back.items() if id > to]
    return found


@contextmanager
def taking_out(
    drafting: Drafting,
    recorded: Recorded,
    found: Collection[BackAgain],
    *,
    lane: str,
    to: int,
    drop_output: bool,
    allow_skip: bool,
) -> Iterator[None]:
    """Around the plan of a rewind that takes these out.

    :param drop_output: it is to take rows out. Else that is what it lacks, and no other way is told.
    :param allow_skip: take out also what cannot be read again; a note tells of it.
    :raises MaintenanceError: if what these are of may not be read again, or as the plan does; with the way on without a
        rewind, for no error of a rewind leads to another one while they are there.
    """
    _check_not_the_only_copy(drafting, recorded, found, lane=lane, to=to, allow_skip=allow_skip)
    try:
        yield
    except MaintenanceError as error:
        if not (found and drop_output):
            raise
        raise MaintenanceError(
            f"{error} Or leave out this rewind: rows that came back are in the way of runs and clears. "
            f"{_keeps(found, lane)}."
        ) from error


def _keeps(found: Collection[BackAgain], lane: str) -> str:
    where = " and ".join(sorted({one.table.location() for one in found}))
    return keeps(where, lane, {one.id for one in found})


def _check_not_the_only_copy(
    drafting: Drafting, recorded: Recorded, found: Collection[BackAgain], *, lane: str, to: int, allow_skip: bool
) -> None:
    """Check that what the rows are of that came back can be read again: no plan of the log may tell of it, and then
    they are the only copy. Raises as :func:`taking_out`."""
    lost = dict[int, str]()
    for one in found:
        why = next(_why_not_again(drafting, recorded, one, lane=lane, to=to), None)
        if why is not None:
            lost[one.id] = why
    if not lost:
        return
    # Typed again by who has kept the rows, the rewind would read them once more: no log tells that they are kept.
    named, reasons = ", ".join(str(BatchKey(lane, id)) for id in lost), " ".join(dict.fromkeys(lost.values()))
    if not allow_skip:
        raise MaintenanceError(
            f"rows that came back, of batch {named}, may be the only copy of what they are of: {reasons} Nothing was "
            f"done. {_keeps([one for one in found if one.id in lost], lane)}. Do not type this again then: `microbatch "
            f"check {quote(drafting.checkpoint.location)} --table` tells whether a rewind is still needed, and how far "
            "back. Or go on without what cannot be read again: --allow-skip."
        )
    drafting.note(f"lost to the table: what cannot be read again of what batch {named} had read: {reasons}")


def _why_not_again(drafting: Drafting, recorded: Recorded, one: BackAgain, *, lane: str, to: int) -> Iterator[str]:
    """The reasons why what the rows of the batch are of cannot be read again, as far as visible without reading it."""
    checkpoint = drafting.checkpoint
    key, kept = BatchKey(lane, one.id), checkpoint.lane(lane).offset_log.get(to) if to >= 0 else None
    goes_on = {} if kept is None else kept.ends
    entries = _entries(checkpoint, one, key)
    known = [(entry, commit) for entry, commit in entries if entry is not None]
    if not entries or len(known) < len(entries):
        yield "what they had read is on no record."
    for entry, commit in known:
        for name, end in entry.ends.items():
            # An entry that Spark wrote has no starts: nothing before where the lane goes on is read again.
            start = entry.starts.get(name) if entry.starts else goes_on.get(name)
            is_unknown = name in entry.unresolved
            if start == end and not is_unknown:
                continue
            source = recorded.source(name, lane=lane)
            if source is None:
                yield f"batch {key} had read source {name!r}, which the pipeline on record no longer has."
                continue
            reason = source.why_not_from(start) if is_unknown else source.why_not_anew(start, end)
            anew = made_anew(checkpoint, recorded, source, end, to=to) if reason is not None else None
            if reason is not None and anew is None:
                yield reason
            for way in anew or ():
                drafting.note(f"what batch {key} had read does not come back by itself: {reason} Then {way}")
            with suppress(SourceChangedError):  # as it was planned it is refused, and it is planned anew
                gone = (
                    source.left_out(start, end)
                    if reason
                    else lost_of_put_away(checkpoint, commit, name, source, start, end)
                )
                if gone is not None:
                    yield f"{gone}."


def _entries(checkpoint: Checkpoint, one: BackAgain, key: BatchKey) -> list[tuple[OffsetEntry | None, str | None]]:
    """The plans that the rows may be of, as commands have put them away, with None for one that is on no record; each
    with the place of its commit entry, if one was put away with it. Empty if nobody can tell."""
    taken = checkpoint.maintenance.taken_out().get(key.lane, [])
    by = [taken[at] for at in taken_by(taken, key.id, one.digests)]
    known = {digest for command in by for id, digest in command.digests if id == key.id}
    # A command without the plan has taken out a batch of after a backup. One that only took rows of before out again
    # has no digest of them either, and comes after another.
    by = [command for at, command in enumerate(by) if at == 0 or key.id in dict(command.digests)]
    paths = [(command.plans.get(key.id), command.commits.get(key.id)) for command in by]
    if not known.issuperset(one.digests):
        return []
    try:
        return [(None if path is None else checkpoint.put_away(key, path), commit) for path, commit in paths]
    except CorruptEntryError:
        return []


def drop_again(found: Collection[BackAgain], *, lane: str, to: int) -> list[DropOutput]:
    """The steps that take them out once more, newest first."""
    return [
        DropOutput(
            key=str(BatchKey(lane, one.id)),
            epoch=0,
            sink=one.table.definition.to_dict(),
            where=one.table.location(),
            why="it was taken out before, and came back",
            to=to,
        )
        for one in sorted(found, key=lambda one: -one.id)
    ]


def _usable(recorded: Recorded) -> list[OpenSink]:
    with suppress(MaintenanceError):  # no pipeline is on record
        return tables_of(recorded.usable())
    return []
