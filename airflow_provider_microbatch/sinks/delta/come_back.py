"""Rows of batches that were taken out, and that somebody has put back: RESTORE brings files back, and leaves the
application transactions as they are, by which such a batch stays out.

What it had read is planned anew since. Beside what is made of that its rows would be in the table twice. But that may
have been made before the RESTORE, under a smaller number or in another lane, and have gone with it: the rows are the
only ones then, until that batch is brought back.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from airflow_provider_microbatch.checkpoint.key import LETTERS, BatchKey, is_lane
from airflow_provider_microbatch.sinks.delta.history import OUT
from airflow_provider_microbatch.sinks.delta.home import Home
from airflow_provider_microbatch.sinks.delta.log import Snapshot, in_words
from airflow_provider_microbatch.sinks.delta.present import Present
from airflow_provider_microbatch.sinks.delta.removing import those_in
from airflow_provider_microbatch.sinks.placed.logged import rows_written
from airflow_provider_microbatch.sinks.placed.records import Records

_COMMITS = 1000
"""How many of the newest commits are searched for a RESTORE."""
_NAMED = 100
"""How many batches are named at most; whoever looks again finds the others."""


def come_back(present: Present, snapshot: Snapshot, home: Home, keys: Sequence[BatchKey]) -> list[BatchKey]:
    """Those of the batches that were taken out, and of which the snapshot has rows.

    :param present: the batches of that snapshot.
    :raises SinkError: if a file that may have some is another table's.
    """
    # Each question for a transaction replays the log: one costs less than the figures of all files, many cost more,
    # and a publish that asks for long between its snapshot and its commit is outrun by other writers.
    if len(keys) < 2 and not any(map(snapshot.is_taken_out, keys)):
        return []
    if snapshot.merged is not None:
        return []  # the newest changes tell of such a table as a whole
    there = (key for key in keys if present.may_have(key))
    return those_in(snapshot, home, [key for key in there if snapshot.is_taken_out(key)])


def gone_since(
    present: Present, snapshot: Snapshot, records: Records, back: Sequence[BatchKey]
) -> list[tuple[BatchKey, str]]:
    """The batches, of any lane and number, that are in by the application transactions, and whose rows went with the
    RESTORE that brought others back, or may have, where nobody can tell; each with the commits that did so, in words.

    Any of them may have been made of what those had read: batches after a rewind have other ranges, and a clear may
    make rows of what were dead letters.

    :param present: the batches of that snapshot.
    :param back: as :func:`come_back` has them.
    :raises SinkError: if a manifest is gone.
    """
    if not back:
        return []  # without a listing of the lanes: this is asked at each plan
    found = []
    keys = (BatchKey(lane, id) for lane in filter(is_lane, records.lanes()) for id in records.ids(lane))
    for key in (key for key in keys if present.may_be_away(key, back=back)):
        number = snapshot.number(key)
        by = None if number is None else present.away_by(key, f"{number:016x}", back=back)
        if number is not None and by is not None:
            manifest = records.get(key, number)
            # Rows that Spark has not counted may have been there.
            if rows_written(manifest) != 0 and not present.may_have_attempt(manifest, f"{number:016x}"):
                found.append((key, by))
    return found


def passed_over(present: Present, snapshot: Snapshot, records: Records, back: Sequence[BatchKey]) -> list[BatchKey]:
    """The batches before those, of their lane, that were taken out together with them and stay out: a position by hand,
    or a batch set aside, has their numbers. What those that are back are of may be passed over by that, so that they
    are the only rows of it.

    :param back: as :func:`come_back` has them, of one lane, ascending, at least one.
    """
    keys = (BatchKey(back[0].lane, id) for id in records.ids(back[0].lane) if id < back[0].id)
    asked = (key for key in keys if present.may_be_away(key, back=back))
    return [key for key in asked if snapshot.is_taken_out(key) and present.away_by(key, OUT, back=back) is not None]


def in_again(snapshot: Snapshot, keys: Sequence[BatchKey]) -> str:
    """That rows of these batches are in again, in words.

    :param keys: as :func:`come_back` has them, at least one.
    """
    restored = (info for info in snapshot.table.history(_COMMITS) if info.get("operation") == "RESTORE")
    by = next(map(in_words, restored), None)
    told = "" if by is None else f"; put back, most likely, by {by}"
    named = _named(keys)
    which = f"batch {named} again, which was" if len(keys) == 1 else f"batches {named} again, which were"
    return f"version {snapshot.version} has rows of {which} taken out{told}"


def are_the_only_ones(away: Sequence[tuple[BatchKey, str]]) -> str:
    """That the rows may be all that there is of what was read, in words.

    :param away: as :func:`gone_since` has them, at least one.
    """
    named = _named([key for key, _ in away])
    by = "; ".join(dict.fromkeys(by for _, by in away))
    why = "Others may have been made of what these had read, and have no rows there any more"
    return f"{why}: {named}, put back by {by}"


def were_passed_over(passed: Sequence[BatchKey]) -> str:
    """The same of rows of which no batch may read again what they are of.

    :param passed: as :func:`passed_over` has them, at least one.
    """
    why = "in whose place is none (a position by hand, or a batch set aside)"
    return f"So was {passed[-1]}, {why}: what these are of may be read by no batch any more"


def left(keys: Sequence[BatchKey]) -> str:
    """Why rows stay under whose numbers no batch comes in any more, in words.

    :param keys: as :func:`come_back` has them, at least one.
    """
    why = "No batch is planned under such a number any more: they may be the only rows of what they are of"
    return f"{why}. Leave them there, or `microbatch rewind` to before {keys[0]}, which has it read again"


def way_on(
    home: Home,
    snapshot: Snapshot,
    keys: Sequence[BatchKey],
    away: Sequence[tuple[BatchKey, str]] = (),
    passed: Sequence[BatchKey] = (),
) -> str:
    """What is done, in this order, until the rows are out. All batches are of one lane.

    The command is for the version that was looked at: typed after a batch has come in under such a number it would
    take out the good rows. And its commit says that it was told here: one of others after a RESTORE could have brought
    rows, so that nobody would tell any more of those which the RESTORE took away.

    :param away: as :func:`gone_since` has them.
    :param passed: as :func:`passed_over` has them.
    """
    lane, ids = keys[0].lane, ", ".join(str(key.id) for key in keys[:_NAMED])
    named = _named([key for key, _ in away])
    clear = f"bring back {named}, by a clear of the task that made it, or as `microbatch check --table` says"
    # While letters that were run again are in a table, nothing that makes them anew is accepted.
    if away and (lane != LETTERS or any(key.lane == lane for key, _ in away)):
        others = "of one that cannot be cleared, `microbatch rewind` to before it has what it is of read again"
        return f"First {clear}; {others}; then look again: what is left to do is told then"
    told = {"microbatch": {"took_out": [str(key) for key in keys[:_NAMED]]}}
    code = (
        f"from deltalake import CommitProperties, DeltaTable; {home.in_python(snapshot.version)}.delete("
        f"\"lane = '{lane}' AND batch_id IN ({ids})\", commit_properties=CommitProperties(max_commit_retries=0, "
        f"custom_metadata={told}))"
    )
    then = f" After that {clear}." if away else ""
    again = (
        f"To have it read again, `microbatch rewind` to before {passed[0]}. Or, if it is not wanted: " if passed else ""
    )
    return (
        f"{again}This fails once version {snapshot.version} is not the newest any more; look again then.{then} Take "
        f"them out: python -c {shlex.quote(code)}"
    )


def _named(keys: Sequence[BatchKey]) -> str:
    return ", ".join(map(str, keys[:_NAMED])) + (" …" if len(keys) > _NAMED else "")
