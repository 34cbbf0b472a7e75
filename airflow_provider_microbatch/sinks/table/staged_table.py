"""The hook that gives a stage table its storage at CREATED and takes it away on FAILED and CANCELED.

Modelled on Flink's ``CTASJobStatusHook``: the catalog is an argument, so that any process can call the hook.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.job_status import JobContext, JobStatusHook
from airflow_provider_microbatch.sinks.table.catalog import Catalog
from airflow_provider_microbatch.sinks.table.stage_table import StageTable, Table


@dataclass(frozen=True)
class StagedTableHook(JobStatusHook):
    """Added by each :class:`~airflow_provider_microbatch.sinks.table.TableSink`; users need not list it.

    :param catalog: the catalog of the table.
    :param table: the table that is written.
    """

    catalog: Catalog
    table: Table

    def __post_init__(self) -> None:
        if not isinstance(self.catalog, Catalog) or not isinstance(self.table, Table):
            raise DefinitionError("StagedTableHook: catalog must be a Catalog, table a Table.")

    def on_created(self, context: JobContext) -> None:
        self.catalog.create_table(self._stage(context))

    def on_failed(self, context: JobContext, error: str) -> None:
        self.catalog.drop_table(self._stage(context))

    def on_canceled(self, context: JobContext) -> None:
        self.catalog.drop_table(self._stage(context))

    def _stage(self, context: JobContext) -> StageTable:
        return self.catalog.create_stage_table(self.table, context.batch, context.epoch)
