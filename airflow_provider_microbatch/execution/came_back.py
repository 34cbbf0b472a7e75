"""Rows that a rewind has taken out, and that are in a table again: somebody has put the table back (RESTORE).

What they are of is read again since, in batches of other ranges, some of which have gone with the RESTORE. The rows do
not tell which, so nothing comes on top of them, and there is one way on: a rewind to where none of that had been read.
It takes out these rows, and all that was made since, and has it read again, as if it had never been made.
"""

from __future__ import annotations

from collections.abc import Collection
from shlex import quote

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LETTERS, BatchKey
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import OpenSink

_NAMED = 20
"""How many batches are named at most."""


def check_none_came_back(checkpoint: Checkpoint, sink: OpenSink, lane: str) -> None:
    """Check that the table has no rows again of what a rewind of the lane has taken out, nor of dead letters, whose
    rows any batch may make anew. Asks no table where no rewind is on record.

    :raises SinkError: if the table has some, with the way on.
    """
    taken = checkpoint.maintenance.taken_out()
    for one in dict.fromkeys((lane, LETTERS)):
        ids = {id for command in taken.get(one, ()) for id in command.ids}
        for table in sink.tables if ids else ():
            back = table.came_back(one, ids, checkpoint.tables)
            if back:
                # A copy has left some records behind: of a batch without one nobody knows how far to go back.
                back = sorted({*back, *table.came_back(one, None, checkpoint.tables)})
                raise SinkError(told_of(checkpoint, table, one, back))


def goes_back_to(checkpoint: Checkpoint, lane: str, back: Collection[int]) -> int | None:
    """The batch to which a rewind takes out all that may have been made of what these are of; -1 for none at all. None
    if nothing can be rewound so far, since retention has removed that.

    :param back: all batches that came back, also those of which no rewind is on record.
    """
    taken = checkpoint.maintenance.taken_out().get(lane, [])
    known = {id for one in taken for id in one.ids}
    first = next((at for at, one in enumerate(taken) if one.ids.intersection(back)), 0)
    # What the first one took out is read again by batches that follow on what a later one has left, which may be less.
    to = min(one.to for one in taken[first:]) if known.issuperset(back) else -1
    return to if checkpoint.lane(lane).can_be_rewound_to(to) else None


def told_of(checkpoint: Checkpoint, table: OpenSink, lane: str, back: Collection[int]) -> str:
    """That batches came back, in words, and the way on.

    :param back: all of them; at least one.
    """
    logs, to = checkpoint.lane(lane), goes_back_to(checkpoint, lane, back)
    shown = ", ".join(str(BatchKey(lane, id)) for id in sorted(back)[:_NAMED]) + (" …" if len(back) > _NAMED else "")
    what = (
        f"{table.location()} has rows again that a rewind has taken out, of batch {shown}: somebody has put the table "
        "back (RESTORE). What they are of is read again, or was. So nothing is planned and no clear accepted: "
    )
    if to is not None:
        rewind = command(logs, f"rewind --to {to} --drop-output")
        since = f"came after batch {to}" if to >= 0 else "the lane has made"
        return f"{what}first {rewind} takes them out, with all that {since}, and has it read again."
    return (
        f"{what}from where it has to be read again is not on record any more (retention). First take them out there, "
        f"by DELETE … WHERE lane = '{lane}' AND batch_id IN ({', '.join(map(str, sorted(back)))}); then `microbatch "
        f"check {quote(checkpoint.location)} --table` names the batches of which rows are missing."
    )
