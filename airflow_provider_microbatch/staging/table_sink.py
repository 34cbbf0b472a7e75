"""A table of a catalog as a sink: every attempt writes a stage table, publishing is the catalog's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.sinks import Manifest, Sink
from airflow_provider_microbatch.staging.catalog import Catalog
from airflow_provider_microbatch.staging.hooks import JobStatusHook
from airflow_provider_microbatch.staging.stage_table import APPEND, StageTable, Table
from airflow_provider_microbatch.staging.staged_table import StagedTableHook


@dataclass(frozen=True)
class TableSink(Sink):
    """Writes a table of a catalog, by one of five statements.

    :param catalog: a :class:`~airflow_provider_microbatch.staging.path_catalog.PathCatalog` or
        :class:`~airflow_provider_microbatch.staging.spark_catalog.SparkCatalog`.
    :param table: ``namespace.table``.
    :param mode: ``append`` (continuous: the table is made before batch 0 and each batch is added), or what one batch
        does to the whole table: ``create``, ``create_if_not_exists``, ``replace``, ``create_or_replace``.
    :param format: ``parquet``, ``json``, ``csv`` or ``orc``.
    :param partition_by: columns whose values become folders.
    :param options: options of Spark's writer.
    :param schema: the columns, as DDL. The stage table has them from CREATED on, and rows of another schema are
        refused. None takes the query's, which is known when the stage table has been written.
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
        self.catalog.check_table(self.definition)

    @property
    def definition(self) -> Table:
        """The table as the catalog takes it."""
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
        return (StagedTableHook(self.catalog, self.definition),)

    def location(self) -> str:
        return self.catalog.location(self.definition)

    def check(self) -> None:
        self.catalog.check(self.definition)

    def admits(self, key: BatchKey) -> bool:
        return self.catalog.admits(self.definition, key)

    def stage(self, key: BatchKey, epoch: int) -> Stage:
        return self.catalog.runtime_stage(self._stage(key, epoch))

    def manifest(self, key: BatchKey, epoch: int) -> Manifest | None:
        return self.catalog.manifest(self._stage(key, epoch))

    def failure(self, key: BatchKey, epoch: int) -> Mapping[str, Any] | None:
        return self.catalog.failure(self._stage(key, epoch))

    def contains(self, key: BatchKey) -> Manifest | None:
        return self.catalog.published(self.definition, key)

    def publish(self, key: BatchKey, epoch: int) -> Manifest:
        return self.catalog.publish(self._stage(key, epoch), replay=False)

    def replace(self, key: BatchKey, epoch: int) -> Manifest:
        return self.catalog.publish(self._stage(key, epoch), replay=True)

    def drop_stage(self, key: BatchKey, epoch: int) -> bool:
        return self.catalog.drop_table(self._stage(key, epoch))

    def fence(self, key: BatchKey, epoch: int, *, by: str) -> None:
        self.catalog.files(self.definition).fence(key, epoch, by=by)

    def drop_fences(self, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        return self.catalog.files(self.definition).drop_fences(older_seconds=older_seconds, dry_run=dry_run)

    def withdraw(self, key: BatchKey, epoch: int) -> bool:
        return self.catalog.withdraw(self.definition, key, epoch)

    def drop_replaced(self, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        return self.catalog.drop_replaced(self.definition, older_seconds=older_seconds, dry_run=dry_run)

    def stages(self) -> list[tuple[BatchKey, int]]:
        return self.catalog.stages(self.definition)

    def _stage(self, key: BatchKey, epoch: int) -> StageTable:
        return self.catalog.create_stage_table(self.definition, key, epoch)
