"""One micro-batch in one task run: plan, run, publish, commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import (
    BatchInProgressError,
    BatchPurgedError,
    BatchSetAsideError,
    DefinitionError,
    MicroBatchError,
    NothingInIntervalError,
)
from airflow_provider_microbatch.execution.engine import Code, Engine
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.labels import aside_label, batch_label
from airflow_provider_microbatch.execution.summary import BatchSummary, RunSummary
from airflow_provider_microbatch.job_status import check_hook
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.listeners.registration import listen
from airflow_provider_microbatch.operators.one_task import check_only_one
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime.job import Flow, Transform
from airflow_provider_microbatch.task_context.data_interval import interval_work
from airflow_provider_microbatch.task_context.run_context import code_of, identity_of, open_execution
from airflow_provider_microbatch.task_context.stoppable import StoppableEngine

if TYPE_CHECKING:
    from airflow.sdk import Context

LABEL = "{{ batch_label }}"
"""``map_index_template`` of all operators here: shows the batch's number and rows beside the task in the grid."""


def check_pipeline(pipeline: object, *, operator: str) -> Pipeline:
    """:raises DefinitionError: if ``pipeline`` is not a pipeline, or has a hook that only the DAG file's process could
    call."""
    if not isinstance(pipeline, Pipeline):
        raise DefinitionError(f"{operator}: pipeline must be a Pipeline, not {type(pipeline).__name__}.")
    for hook in pipeline.hooks:
        check_hook(hook, where=f"{operator}: pipeline {pipeline.name!r}")
    return pipeline


def check_runnable(pipeline: object, *, operator: str) -> Pipeline:
    """:raises DefinitionError: if ``pipeline`` is not a pipeline, or lacks the transform that its several sources or
    sinks need."""
    checked = check_pipeline(pipeline, operator=operator)
    if checked.transform is None and len(checked.sources) > 1:
        raise DefinitionError(
            f"{operator}: pipeline {checked.name!r} has several sources, so it needs a transform that combines them."
        )
    if checked.transform is None and checked.sink.names:
        raise DefinitionError(
            f"{operator}: pipeline {checked.name!r} has several sinks, so it needs a transform that returns a dict of "
            f"DataFrames by their names: {', '.join(map(repr, checked.sink.names))}."
        )
    return checked


class MicroBatchOperator(BaseOperator):
    """Plan the next micro-batch of a pipeline, run it on Spark, publish it and commit it.

    A batch that an earlier run planned and did not commit is continued. Without new data the task is skipped. The
    return value in XCom is the batch's summary.

    :param pipeline: the pipeline to run.
    :param conn_id: connection of type ``spark`` (each batch by ``spark-submit``) or ``spark_connect`` (on a server that
        runs already; of the Spark arguments only ``conf`` has an effect then). (templated)
    :param conf: Spark settings, which never show up in a rendered field, a log or an argument list.
    :param packages: Maven coordinates, comma-separated. (templated)
    :param exclude_packages: Maven coordinates to leave out, comma-separated.
    :param repositories: Maven repositories, comma-separated.
    :param jars: jars for driver and executors, comma-separated. (templated)
    :param driver_class_path: class path of the driver.
    :param files: further files for the working folders, comma-separated.
    :param archives: archives to unpack there, comma-separated.
    :param env_vars: environment of the driver.
    :param properties_file: a properties file in place of ``spark-defaults.conf``.
    :param spark_binary: name of the spark-submit program; overrides the connection's.
    :param deploy_mode: ``client`` or ``cluster``; overrides the connection's.
    :param driver_memory: memory of the driver, such as ``1g``.
    :param executor_memory: memory of an executor, such as ``2g``.
    :param executor_cores: cores of an executor.
    :param num_executors: executors to start.
    :param total_executor_cores: cores of all executors on a standalone cluster.
    :param keytab: Kerberos keytab.
    :param principal: Kerberos principal.
    :param proxy_user: user to impersonate.
    :param yarn_queue: queue of YARN; overrides the connection's.
    :param verbose: have spark-submit print what it does.
    :param max_active_tis_per_dag: 1: batches of a pipeline are serial, and a second task would wait in vain.
    :param map_index_template: label in the grid; ``batch_label`` is ``batch 5 · 1,000 rows``.
    """

    # In processes without the DAG file the listener recognizes a task of ours by microbatch_checkpoint.
    template_fields: Sequence[str] = ("conn_id", "packages", "jars", "microbatch_checkpoint")
    ui_color = "#e2d9f3"
    plans_batches: ClassVar[bool] = True

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        conn_id: str = "spark_default",
        conf: Mapping[str, Any] | None = None,
        packages: str | None = None,
        exclude_packages: str | None = None,
        repositories: str | None = None,
        jars: str | None = None,
        driver_class_path: str | None = None,
        files: str | None = None,
        archives: str | None = None,
        env_vars: Mapping[str, Any] | None = None,
        properties_file: str | None = None,
        spark_binary: str | None = None,
        deploy_mode: str | None = None,
        driver_memory: str | None = None,
        executor_memory: str | None = None,
        executor_cores: int | None = None,
        num_executors: int | None = None,
        total_executor_cores: int | None = None,
        keytab: str | None = None,
        principal: str | None = None,
        proxy_user: str | None = None,
        yarn_queue: str | None = None,
        verbose: bool = False,
        max_active_tis_per_dag: int | None = 1,
        map_index_template: str | None = LABEL,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_active_tis_per_dag=max_active_tis_per_dag, map_index_template=map_index_template, **kwargs)
        self.pipeline = check_runnable(pipeline, operator=f"task {self.task_id!r}")
        self.microbatch_checkpoint = self.pipeline.checkpoint
        self.conn_id = conn_id
        self.packages = packages
        self.jars = jars
        self._conf = conf
        self._engine_arguments: dict[str, Any] = {
            "properties_file": properties_file,
            "deploy_mode": deploy_mode,
            "env_vars": env_vars,
            "files": files,
            "spark_binary": spark_binary,
            "exclude_packages": exclude_packages,
            "repositories": repositories,
            "driver_class_path": driver_class_path,
            "archives": archives,
            "driver_memory": driver_memory,
            "executor_memory": executor_memory,
            "executor_cores": executor_cores,
            "num_executors": num_executors,
            "total_executor_cores": total_executor_cores,
            "keytab": keytab,
            "principal": principal,
            "proxy_user": proxy_user,
            "yarn_queue": yarn_queue,
            "verbose": verbose,
        }
        self._running: StoppableEngine | None = None
        check_only_one(self, self.get_dag())

    @lifetime()
    def execute(self, context: Context) -> dict[str, Any]:
        """Make one batch.

        :return: the batch's summary. A run that replays several batches returns the summary of the last batch, and all
            keys as ``batches``.
        :raises AirflowSkipException: if there is nothing new, or another run is alive at the batch.
        :raises AirflowFailException: if the batch was set aside: no retry, and ``on_failure_callback`` is called.
        """
        listen()
        check_only_one(self, context["dag"])
        run = identity_of(context)
        code, transform = self.code(context)
        execution = open_execution(self.pipeline)
        work = interval_work(self.pipeline, context)
        engine = self._running = StoppableEngine(self.engine())
        try:
            with alarming(context):
                summary: BatchSummary | RunSummary | None = (work or execution).run(
                    run=run, engine=engine, code=code, transform=transform, should_stop=lambda: engine.stopped
                )
        except (BatchInProgressError, BatchPurgedError, NothingInIntervalError) as nothing:
            raise AirflowSkipException(str(nothing)) from None
        except AirflowFailException:
            raise
        except Exception:
            set_label(context, planned_label(execution) if work is None else batch_label(work.at))
            raise
        if summary is None:
            # The batch of a data interval may have been made by another run, which says nothing about the sources.
            complete = execution.planner.complete() if work is None else None
            set_label(context, None if complete is None else "complete")
            raise AirflowSkipException(nothing_planned(self.pipeline, complete))
        set_label(context, summary.label)
        return summary.to_dict()

    def on_kill(self) -> None:
        """Stop Spark. ``execute`` goes on, finds that the engine was stopped, and publishes nothing."""
        if self._running is not None:
            self._running.stop()

    def code(self, context: Context) -> tuple[Code, Transform | Flow | None]:
        """The files that travel to Spark, and the function to call."""
        return code_of(self.pipeline, context)

    def engine(self) -> Engine:
        """The engine that runs the batch, by the type of the connection."""
        from airflow_provider_microbatch.engines.lookup import Wanted, engine_for

        arguments = {**self._engine_arguments, "packages": self.packages, "jars": self.jars}
        return engine_for(Wanted(conn_id=self.conn_id, conf=self._conf, arguments=arguments))


def nothing_planned(pipeline: Pipeline, complete: str | None) -> str:
    """Why a task is skipped, in words.

    :param complete: says in words that there will never be a batch; None if there may be.
    """
    if complete is None:
        return f"pipeline {pipeline.name!r}: nothing new, no batch was planned."
    return f"pipeline {pipeline.name!r} is {complete}"


def set_label(context: Context, label: str | None) -> None:
    """Make ``batch_label`` known to ``map_index_template``, which Airflow renders after ``execute``."""
    if label is not None:
        context["batch_label"] = label  # type: ignore[typeddict-unknown-key]


@contextmanager
def alarming(context: Context) -> Iterator[None]:
    """Fail the task for good if its batch is set aside: the square is red, and the task has no further retry."""
    try:
        yield
    except BatchSetAsideError as alarm:
        set_label(context, aside_label(BatchKey.parse(alarm.batch)))
        raise AirflowFailException(str(alarm)) from alarm


def planned_label(execution: Execution) -> str | None:
    """Label of the batch that a failed task has left planned; None if no batch is, or the log cannot be read."""
    try:
        tail = execution.checkpoint.lane(LIVE).tail()
    except (MicroBatchError, OSError):
        return None
    if tail.offset_id is None or tail.offset_id == tail.commit_id:
        return None
    return batch_label(BatchKey(LIVE, tail.offset_id))
