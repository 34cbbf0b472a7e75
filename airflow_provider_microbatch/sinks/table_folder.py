"""Decides whether a table's folder is the table, or only the place where its file system is to be mounted.

::

    <path>/_table_id/<id>      a small file: this folder is the table of that id; a folder if a person has said so

The id is made with the first attempt and never removed; the checkpoint has the id on record. Code that writes to the
table, or concludes anything from missing output, looks for the id first. Pipelines that write one table share its id.
The id moves with the table: a table that was moved, or restored from a backup, still has its id.
"""

from __future__ import annotations

import logging
import os
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_microbatch.checkpoint.known_tables import TABLE_ID, KnownTables, is_table_id
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.sinks.file.arguments import local_path
from airflow_provider_microbatch.sinks.file.posix import check_no_link, make_folders, sync, write_mark
from airflow_provider_microbatch.stores.posix.file_system import caching_type

log = logging.getLogger(__name__)

_TOLD = "by the name of this file pipelines know that this folder is their table\n"


def check_writable(root: Path) -> None:
    """Check that a table's folder can be read and written, or made. Nothing stays behind.

    :raises SinkError: if it cannot.
    """
    where = f"the table {root} cannot be written"
    nearest = next(folder for folder in (root, *root.parents) if os.path.lexists(folder))
    if not nearest.is_dir():
        raise SinkError(f"{where}: {nearest} is not a folder.")
    if not os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
        raise SinkError(f"{where}: no permission to read and write {nearest}.")
    if nearest == root:
        return
    # Only an attempt to make a folder tells whether one can be made (root may write everywhere, and not in /proc).
    try:
        Path(tempfile.mkdtemp(prefix=".microbatch-", dir=nearest)).rmdir()
    except OSError as error:
        raise SinkError(f"{where}: no folder can be made in {nearest}: {error.strerror}.") from error


def check_file_system(root: Path) -> None:
    """Check that a table is not begun where other hosts' files are seen late. One that is there goes on, since its
    batches would have to be moved; each plan says so.

    :raises SinkError: if it would be.
    """
    kind = caching_type(root)
    if kind is None:
        return
    why = (
        f"on a file system of type {kind!r}, which answers from a cache of its client's: what another host has "
        "published may be absent for seconds, two folders cannot be exchanged, and no table was tried there"
    )
    elsewhere = "a local disk, a file system that shows every host the same at once, or a bucket"
    if TableFolder(root).is_empty():
        raise SinkError(f"the table {root} cannot be begun: it would be {why}. Its place is {elsewhere}.")
    log.warning("The table %s is %s. The table should be moved to %s.", root, why, elsewhere)


@dataclass(frozen=True)
class TableFolder:
    """:param root: the table's folder."""

    root: Path

    @property
    def location(self) -> str:
        """The address under which a checkpoint has the table's id on record."""
        return f"file://{self.root}"

    def is_here(self, tables: KnownTables) -> bool:
        """Whether the table is here, as far as the checkpoint knows.

        :param tables: the checkpoint's knowledge of its tables.
        :return: False if the table was moved, and ``tables`` follows it: output that is missing here is then known to
            be missing.
        :raises SinkError: if the table is away.
        """
        table_id = tables.get(self.location)
        if table_id is None or self._shows(table_id):
            return True
        away = self._away(tables)
        if away is not None:
            raise SinkError(away)
        return False

    def would_show(self, location: str) -> bool:
        """Whether an address lies in the table, and under no name that readers skip."""
        try:
            below = local_path(location).relative_to(self.root).parts
        except (DefinitionError, ValueError):
            return False
        return not any(name.startswith(("_", ".")) for name in below)

    def is_same_place(self, other: TableFolder) -> bool:
        """Whether both are one folder: they have the same path, or a link leads from one to the other."""
        if self.root == other.root:
            return True
        try:
            return self.root.samefile(other.root)
        except OSError:
            return False

    def is_table_of(self, before: TableFolder, tables: KnownTables) -> bool:
        """Whether the table here is the one that ``tables`` knows at another address."""
        table_id = tables.get(before.location)
        return table_id is not None and self._shows(table_id)

    def seems_away(self, tables: KnownTables) -> str | None:
        """Why the table is away, or seems to be while it has no id on record, and what to do; None if not."""
        if tables.get(self.location) is not None:
            return self._away(tables)
        return f"the table {self.root} is empty or not there: {self._ways_on()}" if self.is_empty() else None

    def is_empty(self) -> bool:
        """Whether the folder is empty, or does not exist."""
        try:
            with os.scandir(self.root) as entries:
                return next(entries, None) is None
        except OSError:
            return True

    def make_known(self, tables: KnownTables, *, is_there: Callable[[], bool]) -> None:
        """Have the checkpoint know the table by its id from now on; see :meth:`Sink.make_ready`.

        The id is read first: if it is still there after the table was found to be there, the table itself has the id.

        :raises SinkError: if it is not certain that the table is there, and the user has not said so.
        """
        self.is_here(tables)
        if tables.get(self.location) is not None:
            return
        table_id = self._id()
        # A person makes a folder; this package makes a file, maybe in the place where the table is to be mounted.
        is_said = (self.root / TABLE_ID / table_id).is_dir()
        if not is_said and not is_there():
            raise SinkError(
                f"the newest batch that was published to the table {self.root} is not there: {self._ways_on()}"
            )
        if self._shows(table_id):
            tables.put(self.location, table_id)

    def _away(self, tables: KnownTables) -> str | None:
        table_id = tables.get(self.location)
        if table_id is None or self._shows(table_id):
            return None
        others = [TableFolder(Path(other.removeprefix("file://"))) for other in tables.moved_to(table_id)]
        if any(other._shows(table_id) for other in others):
            return None
        return (
            f"the table {self.root} is away, or another one is in its place: its file system may not be mounted. "
            "Nothing is written there until it is back. If it was emptied on purpose, make the folder "
            f"{self.root / TABLE_ID / table_id}; to bring a batch back, clear its task then."
        )

    def _ways_on(self) -> str:
        """The ways on for a table that has no id on record: any id that no other table has will do."""
        return (
            "its file system may not be mounted. Nothing is written there until it is back. If it was emptied on "
            f"purpose, or the batch removed, make the folder {self.root / TABLE_ID / uuid.uuid4().hex}; to bring a "
            "batch back, clear its task then."
        )

    def _shows(self, table_id: str) -> bool:
        return os.path.lexists(self.root / TABLE_ID / table_id)

    def _id(self) -> str:
        """The id that the table has, or a new one; durable on return. An id that a person has made comes first."""
        folder = self.root / TABLE_ID
        check_no_link(self.root, folder)
        make_folders(folder)
        found = sorted((not path.is_dir(), path.name) for path in folder.iterdir() if is_table_id(path.name))
        if found:
            return found[0][1]
        made = uuid.uuid4().hex
        write_mark(folder / made, _TOLD)
        sync(folder)
        return made
