"""A job of many tables in a DAG: each table is a mapped task run, with the table's name as its label."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator, TaskGroup
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.graph.tables import TableJob, due
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.operators.job import JobPipelineOperator
from airflow_provider_microbatch.operators.not_shown import not_shown
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sensors.job_data import RETRY_SECONDS
from airflow_provider_microbatch.task_context.run_context import identity_of, open_checkpoint
from airflow_provider_microbatch.triggers.new_data import decide

if TYPE_CHECKING:
    from airflow.sdk import Context

LABEL = "{{ task.table }}{{ ' · ' ~ batch_label if batch_label is defined }}"


class TablesOperator(BaseOperator):
    """Find the tables of a job that have a batch to make. Writes nothing. If no table has a batch, the task is skipped.
    A table whose pipeline cannot be made comes last: the task of the table fails and tells why.

    XCom: the names of the tables; the table that has been without a batch for longest comes first.

    :param job: the job.
    :param max_pipelines: most tables of a run; the other tables have their turn in the next runs.
    :param retry_seconds: how long a table is left alone after its batch failed, in seconds.
    """

    ui_color = "#d9e8f3"

    def __init__(
        self, *, job: TableJob, max_pipelines: int, retry_seconds: float = RETRY_SECONDS, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if not isinstance(job, TableJob):
            raise DefinitionError(f"task {self.task_id!r} is given a {type(job).__name__}, not a TableJob.")
        if type(max_pipelines) is not int or max_pipelines < 1:
            raise DefinitionError(f"task {self.task_id!r}: max_pipelines must be 1 or more, not {max_pipelines!r}.")
        self.job = job
        self.max_pipelines = max_pipelines
        self.retry_seconds = retry_seconds

    @lifetime()
    def execute(self, context: Context) -> list[str]:
        """:return: the names of the tables.
        :raises AirflowSkipException: if no table has a batch to make.
        """
        run = identity_of(context)
        tables, pipelines, broken = dict[str, str](), list[tuple[Pipeline, Checkpoint]](), list[str]()
        for table in self.job.tables():
            try:
                pipeline = self.job.pipeline(table)
                pipelines.append((pipeline, open_checkpoint(pipeline)))
                tables[pipeline.name] = table
            except Exception as error:  # also of the job's own functions: one table's error must not stop the others
                self.log.warning("table %r cannot be made: %s: %s", table, type(error).__name__, error)
                broken.append(table)
        found = due(
            pipelines,
            ask=lambda pipeline, searched_ms: decide(pipeline, run, backfill=False, searched_ms=searched_ms),
            at_most=self.max_pipelines,
            retry_seconds=self.retry_seconds,
            was_cleared=run.was_cleared,
        )
        self.log.info("%s: of %d tables %d have a batch to make", self.job, len(tables), len(found))
        if not found and not broken:
            raise AirflowSkipException(f"{self.job}: no table has a batch to make.")
        # The tasks of broken tables fail at once and tell why, so they take no other table's turn.
        return [*(tables[pipeline.name] for pipeline in found), *broken[: self.max_pipelines]]


class TableOperator(JobPipelineOperator):
    """The next micro-batch of one table of a job.

    :param job: the job.
    :param table: the table.
    """

    maps_tables: ClassVar[bool] = True

    def __init__(self, *, job: TableJob, table: str, **kwargs: Any) -> None:
        super().__init__(pipeline=job.pipeline(table), job=job.checkpoint, part=table, sinks=(table,), **kwargs)
        self.table = table


def micro_batch_tables(
    job: TableJob,
    *,
    max_pipelines: int = 16,
    retry_seconds: float = RETRY_SECONDS,
    group_id: str | None = None,
    operator: type[TableOperator] = TableOperator,
    **operator_arguments: Any,
) -> TaskGroup:
    """A task group of a job of tables: one task lists the tables that have a batch to make, and a mapped task makes the
    batches, with an instance for each table.

    :param job: the job.
    :param max_pipelines: most tables of a run, and so most Sparks at once; the table that has been without a batch for
        longest comes first.
    :param retry_seconds: how long a table is left alone after its batch failed, in seconds; twice as long after each
        further failure, up to an hour.
    :param group_id: id of the task group; by default the name of the job.
    :param operator: a subclass of the tables' operator, in its place.
    :param operator_arguments: further arguments of
        :class:`~airflow_provider_microbatch.operators.micro_batch.MicroBatchOperator`, such as ``conn_id``.
    :raises DefinitionError: for a wrong type or value.
    """
    # Instances of one task are different tables here; the log keeps two runs from making one batch.
    # No retries, whatever a DAG's default_args say: the run would wait for them.
    limits = {
        "retries": 0,
        "max_active_tis_per_dag": None,
        "max_active_tis_per_dagrun": max_pipelines,
        "map_index_template": LABEL,
    }
    with TaskGroup(group_id=group_id or getattr(job, "name", None)) as group:
        tables = TablesOperator(task_id="tables", job=job, max_pipelines=max_pipelines, retry_seconds=retry_seconds)
        operator.partial(
            task_id="micro_batch", job=job, retry_seconds=retry_seconds, **{**limits, **not_shown(operator_arguments)}
        ).expand(table=tables.output)
    return group
