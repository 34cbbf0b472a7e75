"""What continuous tables of Spark's catalog have in common: they are made before their first batch, for a pipeline."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.file.arguments import RESERVED_COLUMNS
from airflow_provider_microbatch.sinks.table.marks import put_mark
from airflow_provider_microbatch.sinks.table.metastore import PIPELINE, Metastore, TableInfo
from airflow_provider_microbatch.sinks.table.stage_table import StageTable, Table

MADE = "_made.json"
"""Mark in the folder of a table that grows by partitions: the table has been in the catalog."""


@dataclass(frozen=True)
class Continuous:
    """:param table: the table.
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
            self.check_new()
        return info is None or self._is_own(info)

    def prepare(self, stage: StageTable) -> None:
        """Make the table before its first batch runs. :raises SinkError: if it belongs to another pipeline, or was made
        before and is gone."""
        if self.store.table(self.table.base_name) is None:
            self.check_new()
            self.store.create(
                self.table.base_name,
                f"{self.table.schema}, lane STRING, batch_id BIGINT",
                provider=self.table.format,
                location=self.files.root,
                properties={PIPELINE: json.dumps(self.table.pipeline)},
                options=self.table.options,
                partitioned_by=self._partitioned_by,
                if_not_exists=True,
            )
        self.admits(stage.batch)
        if not self._mark.exists():
            put_mark(self._mark, {"table": self.table.name, "pipeline": self.table.pipeline})

    def check_new(self) -> None:
        """Check that the table may be made. Only the catalog knows which batches it has: a table that is made again
        would have none of them.

        :raises SinkError: if it was made before and is gone, or could not be made.
        """
        if self._mark.exists():
            raise SinkError(
                f"table {self.table.name} was made for its batches and is not in the catalog any more: somebody has "
                "dropped or renamed it, or the server has another metastore now. A new table would show none of the "
                f"batches that it had, whose files are below {self.files.root} still. Bring it back under its name. If "
                f"it is to begin anew, remove {self._mark}: batches are added to a new table from the next one on."
            )

    def check_there(self) -> None:
        """Check that the table is not away for a while: it alone tells whether a batch is in, and what was removed of
        one that is in would be lost when the table is back. :raises SinkError: if it is away."""
        if self.store.table(self.table.base_name) is None:
            Continuous.check_new(self)

    @property
    def _partitioned_by(self) -> tuple[str, ...]:
        return (*RESERVED_COLUMNS, *self.table.partition_by)

    @property
    def _mark(self) -> Path:
        return self.files.root / MADE

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
        if [one.casefold() for one in info.partitioned_by] != [one.casefold() for one in self._partitioned_by]:
            raise SinkError(
                f"table {self.table.name} was made with partition_by={info.partitioned_by[2:]!r}, not "
                f"{self.table.partition_by!r}, and a metastore changes no table's partition columns. Choose another "
                "name, or keep partition_by."
            )
        return True
