"""The entries by which a lane counts over numbers that tables have: batches that read nothing, and record that."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from airflow_provider_microbatch.checkpoint.entries import OffsetEntry
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.exceptions import MaintenanceError
from airflow_provider_microbatch.execution.newest import first_in_a_row
from airflow_provider_microbatch.execution.position import Position
from airflow_provider_microbatch.upkeep.commands.encoding import encoded_offsets, encoded_position_commit
from airflow_provider_microbatch.upkeep.commands.plan import Drafting
from airflow_provider_microbatch.upkeep.commands.site import Recorded

_MOST_MISSING = 10_000
"""How many consecutive numbers may be missing in a table, at most, before a number that it has: each gets entries in
the logs."""

_HIGHEST = 2**63 - 1
"""The highest batch id: Spark's batch ids are signed numbers of 64 bits."""


def check_counted(recorded: Recorded, tables: KnownTables, held: Sequence[int], lane: str) -> None:
    """Check that the numbers in the table were counted up to: a stray folder may have any number as its name.

    :param held: numbers that the table holds, after the newest number here if there is one.
    :raises MaintenanceError: naming the folder, if no pipeline can have counted up to it, or no batch can have such a
        number.
    """
    missing, after = max(((upper - lower - 1, upper) for lower, upper in pairwise(held)), default=(0, held[-1]))
    if missing > _MOST_MISSING:
        why = f"and none of the {missing} numbers before it: nobody has counted so far"
    elif held[-1] >= _HIGHEST:
        after, why = held[-1], f"and the one after it is no number of a batch: those go up to {_HIGHEST}"
    else:
        return
    where = ", ".join(sink.location() for sink in recorded.usable() if after in sink.batches(lane, tables))
    raise MaintenanceError(
        f"the table has a batch {after} (lane={lane}/batch_id={after} of {where}), {why}. Look who put it there. If "
        "nobody needs it, move it out of the table, and say this again; else this pipeline needs a table of its own."
    )


def count_over(drafting: Drafting, lane: str, position: Position, entry: OffsetEntry, numbers: range) -> None:
    """Plan the entries after which the next batch of the lane comes behind all that tables have.

    :param position: where the lane stands; nothing is planned there.
    :param entry: the entry of each number that is counted over.
    :param numbers: those that are counted over: the last is the highest that a table has.
    """
    why = f"the table has batches of this number or later ones: nothing is read before batch {numbers.stop}"
    planned = encoded_offsets(drafting, lane, entry)
    since = first_in_a_row(drafting.checkpoint.lane(lane).commit_log, numbers.start)
    commit = encoded_position_commit(drafting, entry, planned=planned, since=since)
    folder = "" if lane == LIVE else f"lanes/{lane}/"
    for number in numbers:
        goes_on = position.latest is not None or number > numbers.start
        after = f"{folder}commits/{number - 1}" if goes_on else None
        drafting.write(f"{folder}offsets/{number}", planned, why, after=after)
        drafting.write(f"{folder}commits/{number}", commit, "set by hand: nothing of it is in the table")
