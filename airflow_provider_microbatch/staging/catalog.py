"""Catalogs: where tables have names. One module per kind; a contract suite checks each through ``TableSink``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.sinks import Manifest
from airflow_provider_microbatch.staging.stage_table import StageTable, Table


class Catalog(Definition, ABC):
    """Definition of a catalog, and what the orchestrator does in it. Nothing is touched by the constructor."""

    def create_stage_table(self, table: Table, key: BatchKey, epoch: int) -> StageTable:
        """The stage table of an attempt, as a record in memory: its job knows it, the catalog's storage does not
        before :meth:`create_table`. Pure."""
        return StageTable(table=table, key=key, epoch=epoch)

    @abstractmethod
    def check_table(self, table: Table) -> None:
        """:raises DefinitionError: if this catalog cannot hold such a table. Touches nothing."""

    @abstractmethod
    def location(self, table: Table) -> str:
        """The table's address, in Spark's form, for messages."""

    @abstractmethod
    def check(self, table: Table) -> None:
        """:raises SinkError: if the table cannot be written at all."""

    @abstractmethod
    def admits(self, table: Table, key: BatchKey) -> bool:
        """Whether the batch may be planned, as the catalog is now; see
        :meth:`~airflow_provider_microbatch.sinks.Sink.admits`."""

    @abstractmethod
    def runtime_stage(self, stage: StageTable) -> Stage:
        """Where and how the runtime writes the stage table. Pure."""

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
    def publish(self, stage: StageTable, *, replay: bool) -> Manifest:
        """Make the stage table's rows the table's, in one step as far as the catalog has one.

        :param replay: replace what an earlier attempt of the batch published; else that stays and is the answer.
        :return: the manifest that is in the table now.
        :raises PublishConflictError: if a later attempt or batch is in.
        :raises SinkError: if there is no complete stage table, or the statement does not allow it any more.
        """

    @abstractmethod
    def published(self, table: Table, key: BatchKey) -> Manifest | None:
        """Is the batch in? The manifest of what is published, or None."""

    @abstractmethod
    def manifest(self, stage: StageTable) -> Manifest | None:
        """The manifest of a stage table that was written to its end; None if it was not."""

    @abstractmethod
    def failure(self, stage: StageTable) -> Mapping[str, Any] | None:
        """What the runtime wrote about its failure, or None."""

    @abstractmethod
    def stages(self, table: Table) -> list[tuple[BatchKey, int]]:
        """All stage tables of the table's pipeline that are in the catalog's storage, sorted."""

    @abstractmethod
    def drop_replaced(self, table: Table, *, older_seconds: float, dry_run: bool) -> list[str]:
        """Remove what was replaced at least ``older_seconds`` ago; addresses of what was removed."""
