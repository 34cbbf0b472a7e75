"""The two kinds of tables of Spark's catalog: one that grows by partitions, one that is made or replaced as a whole.

Files never move: an attempt writes them where they stay; publishing is one call that has the metastore name them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.file.arguments import RESERVED_COLUMNS
from airflow_provider_microbatch.sinks.file.report import read_schema
from airflow_provider_microbatch.sinks.table import statement as statement
from airflow_provider_microbatch.sinks.table.marks import TABLE, put_mark, read_mark
from airflow_provider_microbatch.sinks.table.metastore import OWNER, PIPELINE, Metastore, TableInfo
from airflow_provider_microbatch.sinks.table.stage_table import REPLACE, Owner, StageTable, Table
from airflow_provider_microbatch.sinks.table.statements import quoted

MADE = "_made.json"
"""Mark in the folder of a table that grows by partitions: the table has been in the catalog."""


@dataclass(frozen=True)
class Names:
    """Names in the catalog of the tables that an attempt makes.

    :param table: the table's base name.
    :param digest: digest of the owner.
    """

    table: str
    digest: str

    @property
    def stage(self) -> str:
        """Name of the stage table."""
        return f"{self.table}__stage_{self.digest}"

    @property
    def ready(self) -> str:
        """Name of a second stage table, with the columns that the query turned out to have."""
        return f"{self.table}__ready_{self.digest}"

    @property
    def replaced(self) -> str:
        """Name for the previous table, if it had other columns."""
        return f"{self.table}__replaced_{self.digest}"


@dataclass(frozen=True)
class TableOfPartitions:
    """A continuous table: each batch is the partition ``(lane, batch_id)``, whose location is the stage's folder.

    :param table: the table.
    :param files: the sink of its files.
    :param store: the metastore.
    """

    table: Table
    files: FileSink
    store: Metastore

    def admits(self, batch: BatchIdentity) -> bool:
        """:raises SinkError: if the table belongs to another pipeline, or was not made by this catalog."""
        info = self.store.table(self.table.base_name)
        if info is None:
            self._check_never_made()
        return info is None or self._is_own(info)

    def prepare(self, stage: StageTable) -> None:
        """Make the table before its first batch runs. :raises SinkError: if it belongs to another pipeline, or was made
        before and is gone."""
        if self.store.table(self.table.base_name) is None:
            self._check_never_made()
            self.store.create(
                self.table.base_name,
                f"{self.table.schema}, lane STRING, batch_id BIGINT",
                provider=self.table.format,
                location=self.files.root,
                properties={PIPELINE: json.dumps(self.table.pipeline)},
                options=self.table.options,
                partitioned_by=RESERVED_COLUMNS,
                if_not_exists=True,
            )
        self.admits(stage.batch)
        if not self._mark.exists():
            put_mark(self._mark, {"table": self.table.name, "pipeline": self.table.pipeline})

    def folder(self, key: BatchKey) -> Path | None:
        """The folder of the batch's published files."""
        return self.store.partition(self.table.base_name, key)

    def find(self, batch: ExpectedBatch, found: Manifest) -> Manifest | None:
        """The output in the batch's partition. :raises ForeignBatchError: if it is another batch's."""
        return batch.check(found, where=f"table {self.table.name}")

    def batches(self, lane: str) -> list[int]:
        """Ids of the lane for which there are partitions."""
        return self.store.batches(self.table.base_name, lane)

    def put(self, stage: StageTable, folder: Path, names: Names, info: TableInfo) -> None:
        """Have the metastore name the files, in one call. If two attempts add one partition, the metastore decides."""
        before = self.folder(stage.key)
        if before is None:
            self.store.add_partition(self.table.base_name, stage.key, folder)
        else:
            note_replaced(self.files, before)
            self.store.move_partition(self.table.base_name, stage.key, folder)

    def take_out(self, key: BatchKey) -> None:
        """Remove the batch's partition, in one call. Its files are kept as replaced ones are."""
        before = self.folder(key)
        if before is not None:
            note_replaced(self.files, before)
            self.store.drop_partition(self.table.base_name, key)

    def heal(self, names: Names) -> None:
        """Nothing to do: a partition is never half published."""

    @property
    def _mark(self) -> Path:
        return self.files.root / MADE

    def _check_never_made(self) -> None:
        """Only the catalog knows which batches the table has: a table that is made again would have none of them."""
        if self._mark.exists():
            raise SinkError(
                f"table {self.table.name} was made for its batches and is not in the catalog any more: somebody has "
                "dropped or renamed it, or the server has another metastore now. A new table would show none of the "
                f"batches that it had, whose files are below {self.files.root} still. Bring it back under its name. If "
                f"it is to begin anew, remove {self._mark}: batches are added to a new table from the next one on."
            )

    def _is_own(self, info: TableInfo) -> bool:
        pipeline = info.properties.get(PIPELINE)
        if pipeline != json.dumps(self.table.pipeline):
            made = f"is written by pipeline {pipeline}" if pipeline else "was not made by this catalog"
            raise SinkError(f"table {self.table.name} {made}. Batches would mix; choose another name.")
        if info.provider != self.table.format:
            raise SinkError(
                f"table {self.table.name} was made with format {info.provider!r}, not {self.table.format!r}. Choose "
                "another name, or keep the format."
            )
        return True


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

    def put(self, stage: StageTable, folder: Path, names: Names, info: TableInfo) -> None:
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
        if before.same_shape(info):
            self.store.move(table, folder)
            return
        # No Hive metastore swaps two tables in one call: for a moment there is no table of that name.
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
            properties=owner_property(stage),
            options=self.table.options,
            if_not_exists=True,
        )
        made = self.store.table(names.ready)
        if made is None or made.owner != stage.owner:
            raise SinkError(f"table {names.ready} is in the way of {stage}. Drop it, and run the batch again.")
        return made

    def _owner(self, info: TableInfo | None) -> Owner | None:
        # The owner is in the files, not in a property: one call cannot change both location and property.
        return Owner.from_dict(read_mark(info.location / TABLE)) if info and info.location else None


def owner_property(stage: StageTable) -> dict[str, str]:
    """The table property that marks a stage table with its owner."""
    return {OWNER: stage.owner.to_json()}


def note_replaced(files: FileSink, folder: Path) -> None:
    """Record that files of this package are about to be replaced: the janitor removes them after its grace period. The
    note is written before the replacement, so that a crash cannot leave unrecorded files; the janitor checks whether
    they were replaced."""
    if folder.is_relative_to(files.root / "_staging"):
        put_mark(replaced_note(folder), {"version": 1})


def replaced_note(folder: Path) -> Path:
    """Path of the note of :func:`note_replaced`."""
    return folder.with_name(f"{folder.name}.replaced")
