"""Tells whether a source would read a table of this package, and why it must not unless the user allows it.

The rows of a table's batch may come again in other files, when the batch is replayed; a file source, which identifies a
file by its path, takes these for new data.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_microbatch.checkpoint.known_tables import TABLE_BATCHES, TABLE_ID, TABLE_MARK
from airflow_provider_microbatch.runtime.layout import MANIFEST

_BATCH = re.compile(r"(batch_id|attempt)=\d+")


def is_sign_of_table(folder: str, name: str) -> bool:
    """Whether an entry of a folder shows that the folder is a table, or a batch of one. Looks at nothing."""
    if name in (TABLE_ID, TABLE_MARK, TABLE_BATCHES):
        return True
    return name == MANIFEST and _BATCH.fullmatch(os.path.basename(folder)) is not None  # noqa: PTH119 a text


def table_at(base: str, names: Sequence[str]) -> str | None:
    """The folder that a path shows to be a table; None if it shows none.

    :param names: its components below ``base``.
    """
    for depth, name in enumerate(names):
        folder = "/".join([base, *names[:depth]])
        if name[:1] == "_" and is_sign_of_table(folder, name):
            return folder
    return None


def table_around(folder: Path) -> Path | None:
    """The table that a folder is, or lies in; None if it does neither. Takes two looks at the folder, and at each
    folder above it as long as these are ``key=value`` folders, like all folders in which a table has its rows."""
    while True:
        if any(os.path.lexists(folder / sign) for sign in (TABLE_ID, TABLE_MARK)):
            return folder
        if "=" not in folder.name:
            return None
        folder = folder.parent


def why_not(table: str | Path) -> str:
    """Return a message that says why the table is not read, with the possible remedies."""
    return (
        f"{str(table)!r} is a table that a pipeline of this package writes. When a batch of it is replayed (its task "
        "is cleared, or it is rewound), its rows come again in new files, which this source would read beside those "
        "that it has read: twice. Have one pipeline do both steps, or read here what that pipeline reads. If no batch "
        "of the table is ever made again, say so: FileSource(…, allow_table=True)."
    )
