"""Catalogs give tables their names. One module per kind; a contract suite checks each kind through ``TableSink``."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.table.stage_table import APPEND, StageTable, Table


class Catalog(Definition, ABC):
    """Definition of a catalog, with the operations that the orchestrator calls. The constructor touches nothing."""

    @property
    def is_cheap_to_ask(self) -> bool:
        """Whether a look at a table needs neither Spark nor a server."""
        return True

    def create_stage_table(self, table: Table, batch: BatchIdentity, epoch: int) -> StageTable:
        """The stage table of an attempt, as a record in memory: the attempt's job knows it; the catalog's storage does
        not before :meth:`create_table`. Pure."""
        return StageTable(table=table, batch=batch, epoch=epoch)

    def check_table(self, table: Table) -> None:
        """:raises DefinitionError: if this catalog cannot hold such a table. Touches nothing."""
        self.files(table)

    @abstractmethod
    def files(self, table: Table) -> FileSink:
        """A sink for the files of the table's stage tables: their place, and how they are written. Pure.

        :raises DefinitionError: for an unknown format or option.
        """

    def would_show(self, table: Table, location: str) -> bool:
        """Whether readers would take files at an address for the table's, or a batch that replaces the table would
        remove them; see :meth:`Sink.would_show`."""
        return self.files(table).would_show(location)

    def unlike(self, table: Table, before: Table) -> str | None:
        """See :meth:`Sink.unlike`. None for a table that keeps its form itself: :meth:`admits` refuses another one."""
        return None

    @abstractmethod
    def location(self, table: Table) -> str:
        """The table's address, in Spark's form, for messages."""

    def check(self, table: Table) -> None:
        """:raises SinkError: if the table cannot be written at all."""
        self.files(table).check()

    @abstractmethod
    def admits(self, table: Table, batch: BatchIdentity) -> bool:
        """Whether the batch may be planned, given the catalog's present state; see
        :meth:`~airflow_provider_microbatch.sinks.Sink.admits`."""

    def runtime_stage(self, stage: StageTable) -> Stage:
        """Where and how the runtime writes the stage table. Pure."""
        made = self.files(stage.table).stage(stage.batch, stage.epoch)
        return dataclasses.replace(
            made,
            writer="airflow_provider_microbatch.runtime.tables:write",
            arguments={
                **made.arguments,
                "table": stage.table.name,
                "schema": stage.table.schema,
                "columns_of_result": stage.table.mode != APPEND and stage.table.schema is None,
            },
            # A table that is made as a whole has exactly the query's columns.
            reserved_columns=made.reserved_columns if stage.table.mode == APPEND else (),
        )

    def folder(self, stage: StageTable) -> Path:
        """The stage table's folder."""
        return Path(self.runtime_stage(stage).report.removeprefix("file://"))

    def make_ready(self, table: Table, tables: KnownTables, *, is_there: Callable[[], bool]) -> None:
        """Make what must exist before a stage table of ``table`` does; see :meth:`Sink.make_ready`. No private folder
        if the published table is read from where its stage was written: its readers must have access."""
        self.files(table).folder.make_known(tables, is_there=is_there)

    @abstractmethod
    def create_table(self, stage: StageTable) -> None:
        """Give the stage table its place in the catalog's storage, with its owner's mark; for a continuous table make
        the table too. Durable on return.

        :raises SinkError: if the table cannot be written by this attempt, or the stage table's name is taken.
            Nothing is made then.
        """

    @abstractmethod
    def drop_table(self, stage: StageTable) -> bool:
        """Remove the stage table, or the rest of it; never the table. False if there is none, or its owner differs."""

    @abstractmethod
    def publish(self, stage: StageTable, batch: ExpectedBatch, *, replay: bool) -> Manifest:
        """Make the stage table's rows the table's, in one step as far as the catalog has one.

        :param batch: the batch as its checkpoint identifies it: decides which output counts as the batch's.
        :param replay: whether to replace output that an earlier attempt of the batch has published; otherwise that
            output stays, and its manifest is returned.
        :return: the manifest that is in the table now.
        :raises PublishConflictError: if a later attempt or batch is in.
        :raises SinkError: if there is no complete stage table, or the statement does not allow the publish any more.
        :raises ForeignBatchError: if another checkpoint's or pipeline's batch is in its place.
        """

    @abstractmethod
    def published(self, table: Table, batch: ExpectedBatch) -> Manifest | None:
        """Return the manifest of the batch's published output, or None if the batch is not in the table.

        :raises ForeignBatchError: if another checkpoint's or pipeline's batch is in its place.
        """

    def seen(self, table: Table, batch: ExpectedBatch) -> Manifest | None:
        """See :meth:`~airflow_provider_microbatch.sinks.OpenSink.seen`."""
        return self.published(table, batch)

    def finish(self, table: Table, batch: ExpectedBatch) -> Manifest | None:
        """See :meth:`~airflow_provider_microbatch.sinks.OpenSink.finish`."""
        return self.published(table, batch)

    @abstractmethod
    def batches(self, table: Table, lane: str) -> list[int]:
        """Ids under which batches of the lane are in the table, from any checkpoint, ascending."""

    def lanes(self, table: Table) -> list[str] | None:
        """Lanes of which any batch is in the table; None if the catalog cannot tell."""
        return None

    def seems_away(self, table: Table, tables: KnownTables) -> str | None:
        """See :meth:`~airflow_provider_microbatch.sinks.Sink.seems_away`."""
        return self.files(table).seems_away(tables)

    def withdraw(self, table: Table, batch: ExpectedBatch, epoch: int) -> bool:
        """Take a batch out of a continuous table; see :meth:`~airflow_provider_microbatch.sinks.Sink.withdraw`."""
        raise SinkError(
            f"batch {batch.key} cannot be taken out of {self.location(table)} by itself; do it in the catalog."
        )

    def manifest(self, stage: StageTable) -> Manifest | None:
        """The manifest of a stage table that was completely written; None if it was not."""
        return self.files(stage.table).manifest(stage.batch, stage.epoch)

    def failure(self, stage: StageTable) -> Mapping[str, Any] | None:
        """The runtime's record of its failure, or None."""
        return self.files(stage.table).failure(stage.batch, stage.epoch)

    @abstractmethod
    def stages(self, table: Table, checkpoint: str) -> list[tuple[BatchKey, int]]:
        """All stage tables of the table's pipeline and the checkpoint that are in the catalog's storage, sorted."""

    @abstractmethod
    def drop_replaced(self, table: Table, checkpoint: str, *, older_seconds: float, dry_run: bool) -> list[str]:
        """Remove output of the checkpoint that was replaced at least ``older_seconds`` ago; return its addresses."""
