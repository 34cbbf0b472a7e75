"""Catalogs: where tables have names. One module per kind; a contract suite checks each through ``TableSink``."""

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
    """Definition of a catalog, and what the orchestrator does in it. Nothing is touched by the constructor."""

    @property
    def is_cheap_to_ask(self) -> bool:
        """Whether a look at a table needs no Spark, and no server."""
        return True

    def create_stage_table(self, table: Table, batch: BatchIdentity, epoch: int) -> StageTable:
        """The stage table of an attempt, as a record in memory: its job knows it, the catalog's storage does not
        before :meth:`create_table`. Pure."""
        return StageTable(table=table, batch=batch, epoch=epoch)

    def check_table(self, table: Table) -> None:
        """:raises DefinitionError: if this catalog cannot hold such a table. Touches nothing."""
        self.files(table)

    @abstractmethod
    def files(self, table: Table) -> FileSink:
        """Where the files of the table's stage tables are, and how they are written. Pure.

        :raises DefinitionError: for a format or option that there is not.
        """

    def would_show(self, table: Table, location: str) -> bool:
        """Whether what is written at an address is taken for the table's, or goes with what a batch puts in its place;
        see :meth:`Sink.would_show`."""
        return self.files(table).would_show(location)

    @abstractmethod
    def location(self, table: Table) -> str:
        """The table's address, in Spark's form, for messages."""

    def check(self, table: Table) -> None:
        """:raises SinkError: if the table cannot be written at all."""
        self.files(table).check()

    @abstractmethod
    def admits(self, table: Table, batch: BatchIdentity) -> bool:
        """Whether the batch may be planned, as the catalog is now; see
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
            # A table that is made as a whole has the query's columns and no others.
            reserved_columns=made.reserved_columns if stage.table.mode == APPEND else (),
        )

    def folder(self, stage: StageTable) -> Path:
        """The stage table's folder."""
        return Path(self.runtime_stage(stage).report.removeprefix("file://"))

    def make_ready(self, table: Table, tables: KnownTables, *, is_there: Callable[[], bool]) -> None:
        """Make what must be there before a stage table of ``table`` is; see :meth:`Sink.make_ready`. No private folder
        where the published table is read from where its stage was written: its readers must get there."""
        self.files(table).folder.make_known(tables, is_there=is_there)

    @abstractmethod
    def create_table(self, stage: StageTable) -> None:
        """Give the stage table its place in the catalog's storage, with its owner's mark; for a continuous table make
        the table too. What it makes is durable on return.

        :raises SinkError: if the table cannot be written by this attempt, or something of the stage table's name is
            there: nothing is made then.
        """

    @abstractmethod
    def drop_table(self, stage: StageTable) -> bool:
        """Remove the stage table, whatever is left of it. False if there is none, or it is not its owner's. Never
        touches the table."""

    @abstractmethod
    def publish(self, stage: StageTable, batch: ExpectedBatch, *, replay: bool) -> Manifest:
        """Make the stage table's rows the table's, in one step as far as the catalog has one.

        :param batch: what counts as the batch's output.
        :param replay: replace what an earlier attempt of the batch published; else that stays and is the answer.
        :return: the manifest that is in the table now.
        :raises PublishConflictError: if a later attempt or batch is in.
        :raises SinkError: if there is no complete stage table, or the statement does not allow it any more.
        :raises ForeignBatchError: if somebody else's batch is in its place.
        """

    @abstractmethod
    def published(self, table: Table, batch: ExpectedBatch) -> Manifest | None:
        """Is the batch in? The manifest of what is published, or None.

        :raises ForeignBatchError: if somebody else's batch is in its place.
        """

    @abstractmethod
    def batches(self, table: Table, lane: str) -> list[int]:
        """Ids of the lane that something is in the table under, whosever it is, ascending."""

    def lanes(self, table: Table) -> list[str] | None:
        """Lanes that something is in the table of; None if the catalog cannot tell."""
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
        """The manifest of a stage table that was written to its end; None if it was not."""
        return self.files(stage.table).manifest(stage.batch, stage.epoch)

    def failure(self, stage: StageTable) -> Mapping[str, Any] | None:
        """What the runtime wrote about its failure, or None."""
        return self.files(stage.table).failure(stage.batch, stage.epoch)

    @abstractmethod
    def stages(self, table: Table, checkpoint: str) -> list[tuple[BatchKey, int]]:
        """All stage tables of the table's pipeline and the checkpoint that are in the catalog's storage, sorted."""

    @abstractmethod
    def drop_replaced(self, table: Table, checkpoint: str, *, older_seconds: float, dry_run: bool) -> list[str]:
        """Remove what was replaced at least ``older_seconds`` ago and is the checkpoint's; addresses of what was
        removed."""
