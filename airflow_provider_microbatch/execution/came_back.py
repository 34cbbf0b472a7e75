"""Rows that a rewind has taken out, and that are in a table again: somebody has put the table back (RESTORE).

What they are of is read again since, in batches of other ranges, some of which have gone with the RESTORE. The rows do
not tell which, so nothing comes on top of them, and there is one way on: a rewind to where none of that had been read.
It takes out these rows, and all that was made since, and has it read again, as if it had never been made.

Rows in a table that the pipeline has left are no reason to take anything out of the one that it writes to: no rewind is
named for them, none takes them out, and a person says what they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from shlex import quote

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LETTERS, BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.checkpoint.maintenance import TakenOut
from airflow_provider_microbatch.exceptions import CorruptEntryError, DefinitionError, SinkError
from airflow_provider_microbatch.execution.ran_last import newest_pipeline
from airflow_provider_microbatch.execution.recorded_sinks import is_one_of, places_of, tables_in
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.sinks.taken_away import TellsTakenAway

_NAMED = 20
"""How many batches are named at most."""


Back = Mapping[int, Collection[str]]
"""Batches of a lane that came back; by number, the digests of the plans that their rows are of, none if nobody can tell
them."""


def check_none_came_back(checkpoint: Checkpoint, sink: OpenSink, lane: str) -> None:
    """Check that the table has no rows again of what a rewind of the lane has taken out, nor of dead letters, whose
    rows any batch may make anew. Asks no table where no rewind is on record.

    :raises SinkError: if the table has some, with the way on.
    """
    taken = checkpoint.maintenance.taken_out()
    for one in dict.fromkeys((lane, LETTERS)):
        ids = ids_of(taken.get(one, ()))
        for table in sink.tables if ids else ():
            if not table.came_back(one, ids, checkpoint.tables):
                continue
            back = all_back(checkpoint, table, one, checkpoint.tables)
            if back:  # else somebody has undone it meanwhile
                raise SinkError(told_of(checkpoint, table, one, back))


def ids_of(taken: Iterable[TakenOut]) -> set[int]:
    """Numbers of the batches whose output these commands have taken out of a table."""
    return {id for one in taken for id in one.ids}


def all_back(checkpoint: Checkpoint, table: OpenSink, lane: str, tables: KnownTables) -> Back:
    """All batches of the lane that came back to the table. Also those of which no rewind is on record, as where the
    checkpoint is of an export: nobody knows how far to go back for them.

    :raises SinkError: if the table cannot tell.
    """
    ids = ids_of(checkpoint.maintenance.taken_out().get(lane, ()))
    found = {
        id: digests
        for id, digests in table.came_back(lane, None, tables).items()
        if not _are_adopted(checkpoint, BatchKey(lane, id), digests)
    }
    return {**found, **(table.came_back(lane, ids, tables) if ids else {})}


def _are_adopted(checkpoint: Checkpoint, key: BatchKey, digests: Collection[str]) -> bool:
    """Whether the rows are the batch's, by another plan that it has adopted: a clear has made them anew since."""
    adoption = checkpoint.adoptions.get(key)
    return adoption is not None and adoption.identity is not None and {*digests} == {adoption.identity.digest}


def taken_by(taken: Sequence[TakenOut], id: int, digests: Collection[str]) -> list[int]:
    """Which of the commands, by their places, have taken out what came back of a batch: the newest that has each of the
    plans, since one before may have been given up; of rows whose plan nobody can tell, or that is of an older version,
    each that has the number. Empty if none is on record.

    :param digests: of the plans that the rows are of, if they are known.
    """
    known = [[at for at, one in enumerate(taken) if (id, digest) in one.digests] for digest in digests]
    if known and all(known):
        return [places[-1] for places in known]
    return [at for at, one in enumerate(taken) if id in one.ids]


def goes_back_to(checkpoint: Checkpoint, lane: str, back: Back) -> int | None:
    """The batch to which a rewind takes out all that may have been made of what these are of; -1 for none at all. None
    if nothing can be rewound so far, since retention has removed that.

    :param back: all batches that came back, also those of which no rewind is on record.
    """
    taken = checkpoint.maintenance.taken_out().get(lane, [])
    by = [taken_by(taken, id, digests) for id, digests in back.items()]
    # What the first one took out is read again by batches that follow on what a later one has left, which may be less.
    to = min(one.to for one in taken[min(map(min, by)) :]) if all(by) else -1
    return to if checkpoint.lane(lane).can_be_rewound_to(to) else None


def is_left(checkpoint: Checkpoint, table: OpenSink, lane: str) -> bool:
    """Whether the pipeline does not write to the table any more, as the run that planned last names it. Clears and
    attempts tell nothing: they may be of the code of long ago. Of dead letters, which are run again as the newest
    attempt had the pipeline, that one does not write there either. False where nobody can tell.
    """
    try:
        said = checkpoint.sinks_in_force.get()
        newest = newest_pipeline(checkpoint) if lane == LETTERS else None
        again = None if newest is None else checkpoint.definitions.sink(newest[0])
    except (CorruptEntryError, DefinitionError):
        return False
    if said is None:
        return False
    places = [place for form in (said[-1], again) for place in places_of(tables_in(form, beside=table))]
    return not is_one_of(table, places, checkpoint.tables)


def told_of(checkpoint: Checkpoint, table: OpenSink, lane: str, back: Back) -> str:
    """That batches came back, in words, and the way on.

    :param back: all of them; at least one.
    """
    shown = ", ".join(str(BatchKey(lane, id)) for id in sorted(back)[:_NAMED]) + (" …" if len(back) > _NAMED else "")
    what = (
        f"{table.location()} has rows again that a rewind has taken out, of batch {shown}: somebody has put the table "
        "back (RESTORE)."
    )
    kept, those = keeps(table.location(), lane, back), _those(lane, back)
    if is_left(checkpoint, table, lane):
        return (
            f"{what} The pipeline, as it planned last, does not write to this table any more: they are in the way of "
            f"nothing but a clear of before that, and no rewind takes them out. {kept}. Or, if all that they are of is "
            f"elsewhere too, take them out by DELETE … {those}."
        )
    what += " What they are of is read again, or was. So nothing is planned and no clear accepted: "
    logs, to = checkpoint.lane(lane), goes_back_to(checkpoint, lane, back)
    undo = table.undoing(lane, back, checkpoint.tables.following_moves) if isinstance(table, TellsTakenAway) else None
    if to is not None:
        rewind = command(logs, f"rewind --to {to} --drop-output")
        since = f"came after batch {to}" if to >= 0 else "the lane has made"
        instead = "" if undo is None else f" Nothing has to be read again if that is undone instead: {undo}"
        return f"{what}first {rewind} takes them out, with all that {since}, and has it read again.{instead}"
    oldest = next(iter(logs.offset_log.ids()), 0)
    return (
        f"{what}from where it has to be read again is not on record any more (retention). "
        f"{'' if undo is None else f'Undo that, and nothing is lost: {undo} Else: '}{kept}. Or take them out by "
        f"DELETE … {those}; then `microbatch check {quote(checkpoint.location)} --table` names the batches of which "
        f"rows are missing, those before batch {oldest} only as long as the table's own log tells what it had."
    )


def keeps(where: str, lane: str, ids: Collection[int]) -> str:
    """How a person keeps rows that came back, in words: nothing takes out what is nobody's.

    :param where: the tables that have them.
    """
    return (
        f"Keep them in {where}, as nobody's, by UPDATE … SET lane = NULL, batch_id = NULL {_those(lane, ids)}; what of "
        "them is read again, as by a run, or by a clear that `check --table` names then, is in the table twice then"
    )


def _those(lane: str, ids: Collection[int]) -> str:
    return f"WHERE lane = '{lane}' AND batch_id IN ({', '.join(map(str, sorted(ids)))})"
