"""What the batches of a table into which changes are merged have brought, and what it shows of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyarrow import parquet

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.merged.history import History, folder_of_changes
from airflow_provider_microbatch.sinks.placed import HIDDEN
from airflow_provider_microbatch.sinks.placed.data_files import FolderFiles
from airflow_provider_microbatch.sinks.placed.records import FolderRecords
from tests.sinks.changes import Change, versions
from tests.support.customers import DELETE_WHEN, KEY

_LOOKS = 500

NEWEST = Merge(keys=("id",), sequence_by=("version",))
VERSIONS = Merge(keys=(KEY,), sequence_by=("at",), delete_when=DELETE_WHEN, leave_out=("id", "at"), scd_type=2)

MERGES = {1: NEWEST, 2: VERSIONS}
"""By their type, those of the worlds' tables."""

Row = Mapping[str, Any]
Batches = dict[str, list[dict[str, Any]]]


class ShownError(AssertionError):
    """A table shows something else than what its changes make."""


def history_of(root: Path) -> History:
    """Of the table in a folder."""
    return History(
        files=FolderFiles(root),
        records=FolderRecords(root / HIDDEN / "batches"),
        where=str(root),
        folder_of=folder_of_changes,
    )


def changes_of(
    history: History, batches: Iterable[tuple[BatchKey, int]], shown: Sequence[Row], *, scd_type: int
) -> Batches:
    """The changes of the batches that one version of a table names; it shows what they make.

    :param shown: the rows that its readers find.
    """
    found: Batches = {}
    for key, number in batches:
        files = [parquet.read_table(history.files.source(path)) for path in history.files_of(key, number)]
        found[str(key)] = [row for file in files for row in file.to_pylist()]
    check_shown((row for rows in found.values() for row in rows), shown, scd_type=scd_type)
    return {key: [{name: row[name] for name in ("id", "version")} for row in rows] for key, rows in found.items()}


def check_shown(changes: Iterable[Row], shown: Iterable[Row], *, scd_type: int) -> None:
    """Check that a table shows what a dictionary has after the changes.

    :param shown: the rows that its readers find.
    :raises ShownError: if it does not.
    """
    if scd_type == 1:
        newest = dict(sorted((row["id"], row["version"]) for row in changes))
        told, there = sorted(newest.items()), sorted((row["id"], row["version"]) for row in shown)
    else:
        # Of changes at one place the one counts whose text sorts last; a row may also have been read again.
        texts = sorted(changes, key=lambda row: (str(row["id"]), str(row["version"])))
        told = sorted(versions(map(_change, texts)))
        there = sorted((row[KEY], "", _state(row), row["valid_from"], row["valid_to"]) for row in shown)
    if there != told:
        raise ShownError(f"the table shows {there}, and its batches make {told}")


def _change(row: Row) -> Change:
    return Change(id=row[KEY], shop="", ts=row["at"], seq=0, deleted=row["_deleted"], note=_state(row))


def _state(row: Row) -> str:
    return f"{row['note']} by {row['version']}"


def until_nobody_replaces(look: Callable[[], Batches]) -> Batches:
    """A look at a table that a replay does not take files away from meanwhile."""
    for _ in range(_LOOKS):
        with suppress(FileNotFoundError):  # a replay has removed what it has replaced
            return look()
        time.sleep(0.01)
    return look()
