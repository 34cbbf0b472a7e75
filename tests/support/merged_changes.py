"""What the batches of a table into which changes are merged have brought, and what it shows of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyarrow import parquet

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks.merged.history import History, folder_of_changes
from airflow_provider_microbatch.sinks.placed import HIDDEN
from airflow_provider_microbatch.sinks.placed.data_files import FolderFiles
from airflow_provider_microbatch.sinks.placed.records import FolderRecords

_LOOKS = 500

Batches = dict[str, list[dict[str, Any]]]


def history_of(root: Path) -> History:
    """Of the table in a folder."""
    return History(
        files=FolderFiles(root),
        records=FolderRecords(root / HIDDEN / "batches"),
        where=str(root),
        folder_of=folder_of_changes,
    )


def changes_of(
    history: History, batches: Iterable[tuple[BatchKey, int]], shown: Sequence[Mapping[str, Any]]
) -> Batches:
    """The changes of the batches that one version of a table names; it shows the newest of them.

    :param shown: the rows that its readers find.
    """
    found: Batches = {}
    for key, number in batches:
        files = [parquet.read_table(history.files.source(path)) for path in history.files_of(key, number)]
        found[str(key)] = [row for file in files for row in file.select(["id", "version"]).to_pylist()]
    told = sorted((row["id"], row["version"]) for rows in found.values() for row in rows)
    there = sorted((row["id"], row["version"]) for row in shown)
    assert there == told, f"the table shows {there}, and its batches have {told}"
    return found


def until_nobody_replaces(look: Callable[[], Batches]) -> Batches:
    """A look at a table that a replay does not take files away from meanwhile."""
    for _ in range(_LOOKS):
        with suppress(FileNotFoundError):  # a replay has removed what it has replaced
            return look()
        time.sleep(0.01)
    return look()
