"""A table of Spark's catalog that a batch makes or replaces as a whole: ``CREATE TABLE AS`` and its variants.

Files never move: an attempt writes them where they stay; publishing is one call that has the metastore name them.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.file.report import read_schema
from airflow_provider_microbatch.sinks.table import statement as statement
from airflow_provider_microbatch.sinks.table.hive_metastore import VERSION
from airflow_provider_microbatch.sinks.table.marks import TABLE, put_mark, read_mark, remove_mark
from airflow_provider_microbatch.sinks.table.metastore import OWNER, Metastore, TableInfo
from airflow_provider_microbatch.sinks.table.replaced_files import note_renamed, note_replaced, renamed_notes
from airflow_provider_microbatch.sinks.table.stage_names import Names
from airflow_provider_microbatch.sinks.table.stage_table import REPLACE, Owner, StageTable, Table
from airflow_provider_microbatch.sinks.table.statements import quoted

NAMED = "_named.json"
"""Mark in a stage's folder: a table is about to show the files, and whether in place of one that was there."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WholeTable:
    """A table made by ``CREATE TABLE AS`` or one of its variants.

    :param table: the table.
    :param files: the sink of its files.
    :param store: the metastore.
    """

    table: Table
    files: FileSink
    store: Metastore

    def admits(self, batch: BatchIdentity) -> bool:
        """Whether the statement allows the batch; False if there is nothing to do."""
        info = self.store.table(self.table.base_name)
        exists = info is not None or self._is_moved_away()
        return statement.admits(self.table, batch, exists=exists, owner=self._owner(info))

    def prepare(self, stage: StageTable) -> None:
        """Check again; the table appears only on success. :raises SinkError: if the statement is refused by now."""
        if not self.admits(stage.batch):
            raise SinkError(f"table {self.table.name} was made meanwhile by somebody else; nothing is done to it.")

    def folder(self, key: BatchKey) -> Path | None:
        """The folder of the table's files, if the table is the batch's output."""
        info = self.store.table(self.table.base_name)
        owner = self._owner(info)
        if info is None or owner is None or (owner.pipeline, owner.key) != (self.table.pipeline, key):
            return None
        return info.location

    def find(self, batch: ExpectedBatch, found: Manifest) -> Manifest | None:
        """The table's output, if it is the batch's; see :func:`statement.find`."""
        return statement.find(self.table, batch, found)

    def batches(self, lane: str) -> list[int]:
        """The id of the batch whose output the table is."""
        owner = self._owner(self.store.table(self.table.base_name))
        return [owner.key.id] if owner is not None and owner.key.lane == lane else []

    def settle(self, batch: ExpectedBatch, *, goes_on: bool) -> None:
        """Nothing to do: a table is the batch's, or it is not."""

    def put(self, stage: StageTable, folder: Path, batch: ExpectedBatch, names: Names, info: TableInfo) -> None:
        """Have the metastore name the files: by one call, unless a table exists that has other columns."""
        made, table = self._made(names), self.table.base_name
        if self.table.schema is None:
            info = self._with_columns(stage, folder, names)
        before = self.store.table(table)
        (folder / NAMED).unlink(missing_ok=True)  # of an earlier try, which has changed nothing
        put_mark(folder / NAMED, {"version": 1, "replaces": before is not None})
        if before is None:
            self.store.rename(made, table)
            return
        if before.location is not None:
            note_replaced(self.files, before.location)
        # Partitions that the metastore names would stay where they are, for other engines to read.
        names_partitions = self.store.names_partitions_of(table, before)
        if before.same_shape(info) and not names_partitions:
            self.store.move(table, folder)
            return
        # Of a table that this sink has not made, its owner may want the old one back: it is kept under another name.
        version, is_own = before.properties.get(VERSION), self._owner(before) is not None
        is_fit = is_own and not names_partitions
        if is_fit and version is not None and self.store.replace_at_once(table, made, version=version):
            return
        # No statement swaps two tables: for a moment there is no table of that name.
        note_renamed(self.files, names.replaced, stage.owner)
        if not self.is_droppable(before):
            kept = self.store.name(names.replaced)
            log.warning(
                "%s was not made by this catalog, and dropping it would remove its files; it is kept as %s: "
                "drop it yourself",
                self.store.name(table),
                kept,
            )
        self.store.rename(table, names.replaced)
        self.store.rename(made, table)

    def heal(self, names: Names) -> bool:
        """Put back the table that an interrupted publish has moved away: the new one has not taken its name yet. One
        that was replaced does not come back where somebody drops or renames the new one.

        :return: whether one was put back.
        """
        store, table = self.store, self.table.base_name
        if any(store.table(name) is None for name in (names.replaced, self._made(names))) or store.table(table):
            return False
        store.rename(names.replaced, table)
        return True

    def put_back(self) -> None:
        """Put back what the newest interrupted publish has moved away, if there is no table."""
        notes = sorted(renamed_notes(self.files, self.table), key=lambda note: note.stat().st_mtime, reverse=True)
        if self.store.table(self.table.base_name) is None:
            back = next((note for note in notes if self.heal(Names.of_replaced(note.name))), None)
            if back is not None:
                remove_mark(back)

    def is_droppable(self, info: TableInfo) -> bool:
        """Whether no files of somebody else go with a table that is dropped."""
        return info.kind == "EXTERNAL" or self._owner(info) is not None

    def may_show(self, folder: Path, names: Names) -> bool:
        """Whether a table may show the files of a stage under another name: its publisher has died behind the publish,
        and somebody has renamed the table since.

        :param folder: the stage's folder.
        :param names: names of its tables.
        """
        named = read_mark(folder / NAMED)
        if named is None:
            return False
        if self.store.table(self._made(names)) is None:
            return True  # it has got the table's name
        return named.get("replaces") is True and self.store.table(self.table.base_name) is None

    def _made(self, names: Names) -> str:
        """The name under which a publish finds the new table."""
        return names.ready if self.table.schema is None else names.stage

    def _is_moved_away(self) -> bool:
        """Whether an attempt was interrupted between its two renames. The next attempt may begin: it first drops the
        rest of the interrupted attempt, which puts the table back."""
        notes = renamed_notes(self.files, self.table)
        return self.table.mode == REPLACE and any(self.store.table(note.name) for note in notes)

    def _with_columns(self, stage: StageTable, folder: Path, names: Names) -> TableInfo:
        told = read_schema(folder)
        if told is None:
            raise SinkError(f"{stage} at {folder} does not tell its columns. Run the batch again.")
        self.store.create(
            names.ready,
            ", ".join(f"{quoted(name)} {kind}" for name, kind in told["columns"]),
            provider=self.table.format,
            location=folder,
            properties=properties_of(stage),
            options=self.table.options,
            partitioned_by=self.table.partition_by,
            names_partitions=False,
            if_not_exists=True,
        )
        made = self.store.table(names.ready)
        if made is None or made.owner != stage.owner:
            raise SinkError(f"table {names.ready} is in the way of {stage}. Drop it, and run the batch again.")
        return made

    def _owner(self, info: TableInfo | None) -> Owner | None:
        # The owner is in the files, not in a property: one call cannot change both location and property.
        return Owner.from_dict(read_mark(info.location / TABLE)) if info and info.location else None


def properties_of(stage: StageTable) -> dict[str, str]:
    """The table properties that mark a stage table with its owner, and with a version that no other table has."""
    return {OWNER: stage.owner.to_json(), VERSION: str(uuid.uuid4())}
