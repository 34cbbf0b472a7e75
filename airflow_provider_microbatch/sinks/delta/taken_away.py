"""Finds batches of which RESTORE, or an overwrite of the whole table, has left no row.

The application transactions count them as in. The version before such a commit tells what it took away, as long as the
table's log has that version, whichever way the commit names its target. DELETE is none of that: who deletes a batch
names it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.log import spans_of
from airflow_provider_microbatch.sinks.delta.home import Home
from airflow_provider_microbatch.sinks.delta.log import Snapshot, in_words
from airflow_provider_microbatch.sinks.delta.present import Present
from airflow_provider_microbatch.sinks.delta.put_back import is_of_whole
from airflow_provider_microbatch.sinks.delta.removing import those_in
from airflow_provider_microbatch.sinks.file.arguments import RESERVED_COLUMNS
from airflow_provider_microbatch.sinks.placed.logged import rows_written
from airflow_provider_microbatch.sinks.placed.records import Records
from airflow_provider_microbatch.sinks.taken_away import TakenAway

_YEAR_10000_MS = 253_402_300_800_000


def taken_away(now: Present, records: Records, keys: Sequence[BatchKey]) -> Iterator[TakenAway]:
    """What each such commit has taken away, the newest first. A batch is told of once. Nothing of a table of merged
    changes, of which its newest changes tell as a whole.

    :param now: the table as it is now.
    :param keys: batches that were ever in, or about to be, ascending.
    """
    snapshot = now.snapshot
    left = [key for key in keys if not now.own_of(key)] if snapshot.merged is None else []
    for info in snapshot.history_after(-1) if left else ():
        before = snapshot.log.at(info["version"] - 1) if is_of_whole(info) and info["version"] > 0 else None
        if before is None:
            continue
        had = Present(before)
        asked = [key for key in left if had.may_have(key) and _brought_rows(snapshot, records, key)]
        there = _those_in(now, asked)
        gone = [key for key in asked if key not in there]
        with suppress(FileNotFoundError):  # where VACUUM has removed a file, its bounds have to do
            gone = _those_in(had, gone)
        left = [key for key in left if key not in gone]
        if gone:
            yield _told(snapshot.log.home, info, gone)


def _those_in(present: Present, keys: Sequence[BatchKey]) -> list[BatchKey]:
    """Those of the batches of which a version has rows. By the bounds of a file that others share, those between the
    others have some, too: only the file tells."""
    own = {key for key in keys if present.own_of(key)}
    asked = [key for key in keys if key not in own and present.may_have(key)]
    shared = those_in(present.snapshot, present.snapshot.log.home, asked)
    return [key for key in keys if key in own or key in shared]


def _brought_rows(snapshot: Snapshot, records: Records, key: BatchKey) -> bool:
    """Whether the batch is in, and had rows when it was published, or nobody has counted them."""
    number = snapshot.number(key)
    return number is not None and rows_written(records.get(key, number)) != 0


def _told(home: Home, info: Mapping[str, Any], gone: Sequence[BatchKey]) -> TakenAway:
    moment, good = info.get("timestamp"), info["version"] - 1
    at = ""
    if isinstance(moment, int) and 0 <= moment < _YEAR_10000_MS:  # anybody may write an info
        at = f" at {datetime.fromtimestamp(moment / 1000, tz=UTC):%Y-%m-%d %H:%M:%S} UTC"
    return TakenAway(
        ids=[key.id for key in gone],
        by=f"{in_words(info)}{at}",
        back=f"Copy their rows from version {good} to where it is now: {_copying(home, good, gone)} (once, and as long "
        "as VACUUM has left its files), unless they are there as nobody's (lane is NULL): they would be there twice.",
    )


def _copying(home: Home, version: int, gone: Sequence[BatchKey]) -> str:
    """The command that appends the rows that a version has of these batches. Bringing the version back would take out
    all that was committed since, also what no log knows any more, and what others have written."""
    lane, id = RESERVED_COLUMNS
    rows = [
        [(lane, "=", gone[0].lane), (id, ">=", first), (id, "<=", last)]
        for first, last in spans_of([key.id for key in gone])
    ]
    code = (
        f"from deltalake import DeltaTable, write_deltalake; had = {home.in_python()}; had.load_as_version({version}); "
        f"write_deltalake({home.in_python()}, had.to_pyarrow_table(filters={rows!r}), mode='append', "
        "schema_mode='merge')"
    )
    return f"python -c {shlex.quote(code)}"
