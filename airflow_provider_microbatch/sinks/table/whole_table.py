"""A table of Spark's catalog that a batch makes or replaces as a whole: ``CREATE TABLE AS`` and its variants.

Files never move: an attempt writes them where they stay; publishing is one call that has the metastore name them.
"""

from __future__ import annotations

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
from airflow_provider_microbatch.sinks.table.marks import TABLE, put_mark, read_mark
from airflow_provider_microbatch.sinks.table.metastore import OWNER, Metastore, TableInfo
from airflow_provider_microbatch.sinks.table.replaced_files import note_replaced
from airflow_provider_microbatch.sinks.table.stage_names import Names
from airflow_provider_microbatch.sinks.table.stage_table import REPLACE, Owner, StageTable, Table
from airflow_provider_microbatch.sinks.table.statements import quoted


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
        made, table = names.stage, self.table.base_name
        if self.table.schema is None:
            made, info = names.ready, self._with_columns(stage, folder, names)
        before = self.store.table(table)
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
        put_mark(self.files.root / "_replaced" / names.replaced, stage.owner.to_dict())
        self.store.rename(table, names.replaced)
        self.store.rename(made, table)

    def heal(self, names: Names) -> None:
        """Put back the table that an interrupted publish has moved away."""
        if self.store.table(self.table.base_name) is None and self.store.table(names.replaced) is not None:
            self.store.rename(names.replaced, self.table.base_name)

    def _is_moved_away(self) -> bool:
        """Whether an attempt was interrupted between its two renames. The next attempt may begin: it first drops the
        rest of the interrupted attempt, which puts the table back."""
        notes = (self.files.root / "_replaced").glob(f"{self.table.base_name}__replaced_*")
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
