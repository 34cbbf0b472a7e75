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
from airflow_provider_microbatch.sinks.table.read_as_written import Columns, misread, missing, other_options
from airflow_provider_microbatch.sinks.table.stage_table import StageTable, Table
from airflow_provider_microbatch.sinks.table.statements import StatementError, quoted

MADE = "_made.json"
"""Mark in the folder of a table that grows by partitions: the table has been in the catalog."""

_NO_SYNTAX = "PARSE_SYNTAX_ERROR"
"""Spark's error condition of a text that it cannot parse."""


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
        self._check_read(info)
        return True

    def _check_read(self, info: TableInfo) -> None:
        """Check that readers find what the sink writes: no batch changes the columns or options that the catalog reads
        by. :raises SinkError: if they would not."""
        table, form, schema = self.table.name, self.table.format, str(self.table.schema)
        try:
            columns = self.store.columns(schema)
        except StatementError as error:
            if error.condition != _NO_SYNTAX:
                raise
            columns = ()  # A table's columns may say more than a type's, as DEFAULT: those of such a schema pass.
        written, read = self._in_files(columns), self._in_files(info.columns)
        options = other_options(self.table.options, info.options, format=form, columns=(written, read))
        if options:
            raise SinkError(
                f"table {table} was made with other options ({', '.join(options)}): it reads all of its batches by "
                f"{dict(info.options)!r}, and the sink writes by {dict(self.table.options)!r}. Choose another name, or "
                "keep the options."
            )
        others = misread(written, read, format=form)
        if others:
            raise SinkError(
                f"table {table} reads {', '.join(others)} otherwise than schema={schema!r} has them written: it "
                f"has, in this order, {', '.join(name for name, _ in read)}. Readers would find other values, or none. "
                "Choose another name, or keep the schema; columns that are new go behind the others."
            )
        new = missing(written, read, format=form)
        if new:
            named = zip(new, self.store.kinds(schema, new), strict=True)
            added = ", ".join(f"{quoted(name)} {kind}" for name, kind in named)
            raise SinkError(
                f"table {table} does not have {', '.join(new)}, which schema={schema!r} has: readers would not "
                "find what is written there. Have the catalog add it: ALTER TABLE "
                f"{self.store.name(self.table.base_name)} ADD COLUMNS ({added}); or keep the schema."
            )

    def _in_files(self, columns: Columns) -> Columns:
        """Columns whose values are in the files; folders and partitions tell the others."""
        told = {one.casefold() for one in self._partitioned_by}
        return [column for column in columns if column[0].casefold() not in told]
