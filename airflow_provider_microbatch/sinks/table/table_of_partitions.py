"""A continuous table of Spark's catalog: it is made before its first batch, and each batch is a partition of it.

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
from airflow_provider_microbatch.sinks.table.marks import put_mark
from airflow_provider_microbatch.sinks.table.metastore import PIPELINE, Metastore, TableInfo
from airflow_provider_microbatch.sinks.table.replaced_files import note_replaced
from airflow_provider_microbatch.sinks.table.stage_names import Names
from airflow_provider_microbatch.sinks.table.stage_table import StageTable, Table

MADE = "_made.json"
"""Mark in the folder of a table that grows by partitions: the table has been in the catalog."""


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
