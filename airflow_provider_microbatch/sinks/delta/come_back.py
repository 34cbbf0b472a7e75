"""Rows of batches that were taken out, and that somebody has put back: RESTORE brings files back, and leaves the
application transactions as they are, by which such a batch stays out.

What it had read is planned anew since. Beside what is made of that its rows would be in the table twice.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks.delta.home import Home
from airflow_provider_microbatch.sinks.delta.log import Snapshot, in_words
from airflow_provider_microbatch.sinks.delta.present import Present
from airflow_provider_microbatch.sinks.delta.removing import those_in

_COMMITS = 1000
"""How many of the newest commits are searched for a RESTORE."""
_NAMED = 100
"""How many batches are named at most; whoever looks again finds the others."""


def come_back(present: Present, snapshot: Snapshot, home: Home, keys: Iterable[BatchKey]) -> list[BatchKey]:
    """Those of the batches of which the snapshot has rows.

    :param present: the batches of that snapshot.
    :param keys: of batches that were taken out.
    :raises SinkError: if a file that may have some is another table's.
    """
    if snapshot.merged is not None:
        return []  # the newest changes tell of such a table as a whole
    return those_in(snapshot, home, [key for key in keys if present.may_have(key)])


def in_again(snapshot: Snapshot, keys: Sequence[BatchKey]) -> str:
    """That rows of these batches are in again, in words.

    :param keys: as :func:`come_back` has them, at least one.
    """
    named = ", ".join(map(str, keys[:_NAMED])) + (" …" if len(keys) > _NAMED else "")
    restored = (info for info in snapshot.table.history(_COMMITS) if info.get("operation") == "RESTORE")
    by = next(map(in_words, restored), None)
    told = "" if by is None else f"; put back, most likely, by {by}"
    which = f"batch {named} again, which was" if len(keys) == 1 else f"batches {named} again, which were"
    return f"version {snapshot.version} has rows of {which} taken out{told}"


def way_on(home: Home, keys: Sequence[BatchKey]) -> str:
    """The command that takes these rows out. All batches are of one lane."""
    ids = ", ".join(str(key.id) for key in keys[:_NAMED])
    rows = f"lane = '{keys[0].lane}' AND batch_id IN ({ids})"
    code = f'from deltalake import DeltaTable; {home.in_python}.delete("{rows}")'
    return f"Take them out: python -c {shlex.quote(code)}"
