"""A sink that writes a table of a catalog: every attempt writes a stage table, which the catalog publishes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.job_status import JobStatusHook
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, SelfContained, Sink
from airflow_provider_microbatch.sinks.file.arguments import check_options
from airflow_provider_microbatch.sinks.table.catalog import Catalog
from airflow_provider_microbatch.sinks.table.stage_table import APPEND, StageTable, Table
from airflow_provider_microbatch.sinks.table.staged_table import StagedTableHook
from airflow_provider_microbatch.sinks.table_folder import TableFolder


@dataclass(frozen=True)
class TableSink(SelfContained):
    """Writes a table of a catalog, by one of five statements.

    :param catalog: a :class:`~airflow_provider_microbatch.sinks.table.path_catalog.PathCatalog` or
        :class:`~airflow_provider_microbatch.sinks.table.spark_catalog.SparkCatalog`.
    :param table: ``namespace.table``.
    :param mode: ``append`` (continuous: the table is made before batch 0 and each batch is added), or what one batch
        does to the whole table: ``create``, ``create_if_not_exists``, ``replace``, ``create_or_replace``.
    :param format: ``parquet``, ``json``, ``csv`` or ``orc``.
    :param partition_by: columns whose values become folders.
    :param options: options of Spark's writer.
    :param schema: the columns, as DDL. The stage table has them from CREATED on, and rows of another schema are
        refused. None takes the query's columns, which are known when the stage table has been written.
    :param pipeline: set by the pipeline that the sink belongs to.
    :raises DefinitionError: for a wrong type or value, naming the field.
    """

    catalog: Catalog
    table: str
    _: KW_ONLY
    mode: str = APPEND
    format: str = "parquet"
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    schema: str | None = None
    pipeline: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.catalog, Catalog):
            raise DefinitionError(f"TableSink: catalog is a {type(self.catalog).__name__}, not a Catalog.")
        given: object = self.partition_by
        if isinstance(given, str):
            raise DefinitionError(f"table {self.table!r}: partition_by must be a list of columns, not one text.")
        object.__setattr__(self, "partition_by", tuple(self.partition_by))
        check_options(self.options, where=f"table {self.table!r}")
        self.catalog.check_table(self.as_table)

    @property
    def as_table(self) -> Table:
        """The table in the form that the catalog's methods take."""
        return Table(
            name=self.table,
            pipeline=self.pipeline,
            mode=self.mode,
            format=self.format,
            partition_by=self.partition_by,
            options=self.options,
            schema=self.schema,
        )

    def of_pipeline(self, pipeline: str) -> TableSink:
        return dataclasses.replace(self, pipeline=pipeline)

    def hooks(self) -> Sequence[JobStatusHook]:
        return (StagedTableHook(self.catalog, self.as_table),)

    def location(self) -> str:
        return self.catalog.location(self.as_table)

    def check(self) -> None:
        self.catalog.check(self.as_table)

    def admits(self, batch: BatchIdentity) -> bool:
        return self.catalog.admits(self.as_table, batch)

    def make_ready(self, tables: KnownTables, *, is_there: Callable[[], bool]) -> None:
        self.catalog.make_ready(self.as_table, tables, is_there=is_there)

    def stage(self, batch: BatchIdentity, epoch: int) -> Stage:
        return self.catalog.runtime_stage(self._stage(batch, epoch))

    def manifest(self, batch: BatchIdentity, epoch: int) -> Manifest | None:
        return self.catalog.manifest(self._stage(batch, epoch))

    def failure(self, batch: BatchIdentity, epoch: int) -> Mapping[str, Any] | None:
        return self.catalog.failure(self._stage(batch, epoch))

    def contains(self, batch: ExpectedBatch) -> Manifest | None:
        return self.catalog.published(self.as_table, batch) if self._is_here(batch.tables) else None

    def seen(self, batch: ExpectedBatch) -> Manifest | None:
        return self.catalog.seen(self.as_table, batch) if self._is_here(batch.tables) else None

    def finish(self, batch: ExpectedBatch) -> Manifest | None:
        return self.catalog.finish(self.as_table, batch) if self._is_here(batch.tables) else None

    @property
    def keeps_batches(self) -> bool:
        return self.mode == APPEND

    @property
    def can_withdraw(self) -> bool:
        return self.keeps_batches and type(self.catalog).withdraw is not Catalog.withdraw

    @property
    def is_cheap_to_ask(self) -> bool:
        return self.catalog.is_cheap_to_ask

    def seems_away(self, tables: KnownTables) -> str | None:
        return self.catalog.seems_away(self.as_table, tables)

    def is_same_place(self, other: Sink) -> bool:
        if self.location() == other.location():
            return True
        return isinstance(other, TableSink) and self._folder.is_same_place(other._folder)

    def is_table_of(self, before: Sink, tables: KnownTables) -> bool:
        return isinstance(before, TableSink) and self._folder.is_table_of(before._folder, tables)

    def unlike(self, before: Sink) -> str | None:
        return self.catalog.unlike(self.as_table, before.as_table) if isinstance(before, TableSink) else None

    def would_show(self, location: str) -> bool:
        return self.catalog.would_show(self.as_table, location)

    def batches(self, lane: str, tables: KnownTables) -> list[int]:
        return self.catalog.batches(self.as_table, lane) if self._is_here(tables) else []

    def lanes(self, tables: KnownTables) -> list[str] | None:
        return self.catalog.lanes(self.as_table) if self._is_here(tables) else []

    def publish(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        self._is_here(batch.tables)
        return self.catalog.publish(self._stage(batch.staged, epoch), batch, replay=False)

    def replace(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        self._is_here(batch.tables)
        return self.catalog.publish(self._stage(batch.staged, epoch), batch, replay=True)

    def drop_stage(self, batch: BatchIdentity, epoch: int) -> bool:
        return self.catalog.drop_table(self._stage(batch, epoch))

    def fence(self, batch: BatchIdentity, epoch: int, *, by: str) -> None:
        self.catalog.files(self.as_table).fence(batch, epoch, by=by)

    def drop_fences(self, checkpoint: str, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        files = self.catalog.files(self.as_table)
        return files.drop_fences(checkpoint, older_seconds=older_seconds, dry_run=dry_run)

    def withdraw(self, batch: ExpectedBatch, epoch: int) -> bool:
        return self._is_here(batch.tables) and self.catalog.withdraw(self.as_table, batch, epoch)

    def drop_replaced(self, checkpoint: str, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        return self.catalog.drop_replaced(self.as_table, checkpoint, older_seconds=older_seconds, dry_run=dry_run)

    def stages(self, checkpoint: str) -> list[tuple[BatchKey, int]]:
        return self.catalog.stages(self.as_table, checkpoint)

    def _is_here(self, tables: KnownTables) -> bool:
        return self._folder.is_here(tables)

    @property
    def _folder(self) -> TableFolder:
        return self.catalog.files(self.as_table).folder

    def _stage(self, batch: BatchIdentity, epoch: int) -> StageTable:
        return self.catalog.create_stage_table(self.as_table, batch, epoch)
