"""Notes of what a table of Spark's catalog has had, files and tables: the janitor removes that after its grace period.

A note is written before the replacement, so that a crash cannot leave anything unrecorded; the janitor checks whether
it was replaced. A later try makes the note young again: the grace period begins with the replacement.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.sinks.file import STAGING, FileSink
from airflow_provider_microbatch.sinks.table.marks import put_mark
from airflow_provider_microbatch.sinks.table.stage_table import Owner, Table

_NOTE = re.compile(r"lane=(?P<lane>[^/]+)/batch_id=(?P<id>\d+)/attempt=(?P<epoch>\d+)\.replaced")


def note_replaced(files: FileSink, folder: Path) -> None:
    """Record that files of this package are about to be replaced."""
    if folder.is_relative_to(files.root / STAGING):
        _note(replaced_note(folder), {"version": 1})


def replaced_note(folder: Path) -> Path:
    """Path of the note of :func:`note_replaced`."""
    return folder.with_name(f"{folder.name}.replaced")


def replaced_notes(files: FileSink, checkpoint: str) -> list[tuple[BatchIdentity, int, Path]]:
    """Batch, attempt and note of files of a checkpoint's attempts."""
    root, found = files.root / STAGING / checkpoint, []
    for note in sorted(root.glob("lane=*/batch_id=*/attempt=*.replaced")):
        if match := _NOTE.fullmatch(note.relative_to(root).as_posix()):
            try:
                key = BatchKey(match["lane"], int(match["id"]))
            except (DefinitionError, ValueError):
                continue  # a folder of another program
            found.append((BatchIdentity.at(key, checkpoint=checkpoint), int(match["epoch"]), note))
    return found


def note_renamed(files: FileSink, name: str, owner: Owner) -> None:
    """Record that a table is about to be renamed, and that another one takes its place.

    :param name: its name from then on.
    :param owner: the attempt whose table takes its place.
    """
    _note(files.root / "_replaced" / name, owner.to_dict())


def renamed_notes(files: FileSink, table: Table) -> list[Path]:
    """The notes of :func:`note_renamed`, by the names of the tables."""
    return sorted((files.root / "_replaced").glob(f"{table.base_name}__replaced_*"))


def is_older(note: Path, seconds: float) -> bool:
    """Whether a note is there, and that old."""
    return note.exists() and time.time() - note.stat().st_mtime >= seconds


def _note(path: Path, mark: Mapping[str, Any]) -> None:
    if not put_mark(path, mark):
        os.utime(path)
