"""Notes of files that a table of Spark's catalog has had: the janitor removes the files after its grace period."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.table.marks import put_mark


def note_replaced(files: FileSink, folder: Path) -> None:
    """Record that files of this package are about to be replaced: the janitor removes them after its grace period. The
    note is written before the replacement, so that a crash cannot leave unrecorded files; the janitor checks whether
    they were replaced."""
    if folder.is_relative_to(files.root / "_staging"):
        put_mark(replaced_note(folder), {"version": 1})


def replaced_note(folder: Path) -> Path:
    """Path of the note of :func:`note_replaced`."""
    return folder.with_name(f"{folder.name}.replaced")
