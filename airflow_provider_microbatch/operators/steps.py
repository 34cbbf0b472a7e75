"""The steps of a micro-batch as tasks of their own, so that a DAG can have other tasks between them.

``plan`` passes the batch's key, ``submit`` opens an attempt and leaves its stage, ``commit`` publishes the attempt that
submit names. Only one run may be between plan and commit: :func:`micro_batch_steps` refuses a DAG that allows more
active runs. A backfill has more all the same; then plan or submit of the second run finds the first run at the batch
and skips.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseOperator, TaskGroup, XComArg, task
from airflow.sdk.definitions._internal.contextmanager import DagContext
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_microbatch.checkpoint.entries import Attempt, RunIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.engines.lookup import Wanted, engine_for, find_engine
from airflow_provider_microbatch.exceptions import (
    AttemptCanceledError,
    BatchInProgressError,
    BatchPurgedError,
    BrokenLogError,
    DefinitionError,
    EngineError,
    IntervalError,
    NothingInIntervalError,
    OutrunError,
)
from airflow_provider_microbatch.execution.engine import Code, Engine
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.guard import Look
from airflow_provider_microbatch.execution.labels import attempt_label, batch_label, names_of
from airflow_provider_microbatch.execution.planned import PlannedBatch
from airflow_provider_microbatch.execution.replay import still_wanted
from airflow_provider_microbatch.execution.subtasks import assemble
from airflow_provider_microbatch.execution.summary import summarize
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.listeners.registration import listen
from airflow_provider_microbatch.operators.micro_batch import (
    LABEL,
    alarming,
    check_pipeline,
    check_runnable,
    nothing_planned,
    set_label,
)
from airflow_provider_microbatch.operators.one_task import check_only_one
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.task_context.data_interval import interval_work
from airflow_provider_microbatch.task_context.run_context import code_of, identity_of, open_execution, run_goes_on
from airflow_provider_microbatch.task_context.stoppable import StoppableEngine

if TYPE_CHECKING:
    from airflow.sdk import Context


log = logging.getLogger(__name__)

AUDIT_SECONDS = 24 * 60 * 60.0
"""How long a stage waits for its audits: a day, since a person may be one of them."""


class PlanMicroBatchOperator(BaseOperator):
    """Write the next batch's offsets into the log, or take up the batch that is planned already. Without new data the
    task is skipped.

    XCom: the batch's key, such as ``live/5``.

    :param pipeline: the pipeline to plan.
    :param max_active_tis_per_dag: 1, as batches of a pipeline are serial.
    :param map_index_template: label in the grid; ``batch_label`` is ``batch 5``.
    """

    ui_color = "#e2d9f3"
    plans_batches: ClassVar[bool] = True

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        max_active_tis_per_dag: int | None = 1,
        map_index_template: str | None = LABEL,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_active_tis_per_dag=max_active_tis_per_dag, map_index_template=map_index_template, **kwargs)
        self.pipeline = check_runnable(pipeline, operator=f"task {self.task_id!r}")
        check_only_one(self, self.get_dag())

    @lifetime()
    def execute(self, context: Context) -> str:
        """:return: the key of the batch that this run works on."""
        check_only_one(self, context["dag"])
        # Look for the code here, so that a missing file is noticed before anything is planned.
        code, _ = code_of(self.pipeline, context)
        planned = self._plan(identity_of(context), context, code)
        if planned is None:
            of_interval = interval_work(self.pipeline, context) is not None
            complete = None if of_interval else open_execution(self.pipeline).planner.complete()
            raise AirflowSkipException(nothing_planned(self.pipeline, complete))
        # A backfill has more runs at once than the DAG allows: a second run here would stop the attempt of the first.
        with alarming(context):
            # An attempt that submit of this run has open does not count as another's: the next attempt takes it over.
            execution = open_execution(self.pipeline, lane=planned.key.lane)
            look_or_skip(execution, planned.key, context, code, any_task=True)
        set_label(context, batch_label(planned.key))
        return str(planned.key)

    def _plan(self, run: RunIdentity, context: Context, code: Code) -> PlannedBatch | None:
        work = interval_work(self.pipeline, context)
        try:
            if work is None:
                execution = open_execution(self.pipeline)
                found = execution.plan(run)
                self._warn_of_others(execution.own_before(run), found)
                return found
            planned, *more = work.plan(run, code=code)
        except (BatchInProgressError, BatchPurgedError, NothingInIntervalError) as nothing:
            raise AirflowSkipException(str(nothing)) from None
        if more:
            keys = ", ".join(str(one.key) for one in (planned, *more))
            raise IntervalError(
                f"pipeline {self.pipeline.name!r}: {keys} are to be run for one data interval, but a run of these "
                "steps has one batch. Use MicroBatchOperator for this backfill, or on_overlap='skip'."
            )
        return planned

    @staticmethod
    def _warn_of_others(before: Sequence[int], planned: PlannedBatch | None) -> None:
        """Log that the other batches of this run stay as they are. A run has several batches if an operator of one task
        made them, and the run was cleared; with the steps in green these batches would pass for replayed."""
        if before and planned is not None:
            log.warning(
                "This run has made %s too. Its tasks hand one batch on, %s: the others stay as they are. To replay "
                "all, put a MicroBatchOperator in the place of the steps, and clear the run again.",
                names_of([BatchKey(planned.key.lane, number) for number in before]),
                planned.key,
            )


class SubmitMicroBatchOperator(SparkSubmitOperator):
    """Begin the planned batch's next attempt and run the attempt by ``spark-submit``. The stage is left for audits.

    XCom: ``{"key": "live/5", "epoch": 2, "stage": path, "format": "parquet"}``. When the task runs again (a retry or a
    clear), it begins another attempt, stops the attempt before and drops the stage of that attempt.

    All arguments of :class:`~airflow.providers.apache.spark.operators.spark_submit.SparkSubmitOperator` are taken,
    except ``application``, ``application_args``, ``py_files``, ``java_class`` and ``name``, which are the batch's own.

    :param pipeline: the pipeline to run.
    :param key: the batch, as plan passes it. (templated)
    :param audit_seconds: how long the janitor keeps the finished stage for audits and commit, in seconds.
    :param max_active_tis_per_dag: 1, as batches of a pipeline are serial.
    :param map_index_template: label in the grid; ``batch_label`` is ``batch 5 · attempt 2``.
    """

    # Unlike the parent's, without conf and env_vars: rendered fields are shown to everybody who may see the task.
    # In processes without the DAG file the listener recognizes a task of ours by microbatch_checkpoint.
    template_fields: Sequence[str] = ("key", "conn_id", "packages", "jars", "microbatch_checkpoint")
    ui_color = "#e2d9f3"

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        key: str | XComArg,
        audit_seconds: float = AUDIT_SECONDS,
        conn_id: str = "spark_default",
        max_active_tis_per_dag: int | None = 1,
        map_index_template: str | None = LABEL,
        **kwargs: Any,
    ) -> None:
        # durable would reconnect a retry to the job before, by a note that survives a clear; here each try is an
        # attempt of its own.
        super().__init__(
            conn_id=conn_id,
            durable=False,
            max_active_tis_per_dag=max_active_tis_per_dag,
            map_index_template=map_index_template,
            **kwargs,
        )
        given = [name for name in ("application", "application_args", "py_files") if getattr(self, name)]
        if given:
            raise DefinitionError(
                f"task {self.task_id!r}: {', '.join(given)} cannot be given: the batch's own application runs. Name "
                "your code in the pipeline: transform=…, py_files=…."
            )
        self.pipeline = check_runnable(pipeline, operator=f"task {self.task_id!r}")
        self.microbatch_checkpoint = self.pipeline.checkpoint
        self.key: Any = key
        self.audit_seconds = audit_seconds
        self.conn_id = conn_id
        self._running: StoppableEngine | None = None

    @lifetime()
    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """:return: the attempt and the place of its stage; with several sinks, the place of each sink's stage, by
        name."""
        listen()
        key = BatchKey.parse(_handed_on(self.key, by="plan"))
        code, transform = code_of(self.pipeline, context)
        execution = open_execution(self.pipeline, lane=key.lane)
        engine = self._running = StoppableEngine(self.engine())
        set_label(context, batch_label(key))
        with alarming(context):
            attempt = self._open(execution, key, context, code=code, engine=engine)
        set_label(context, attempt_label(key, attempt.epoch))
        sink = execution.sink
        try:
            with execution.hold(attempt, engine):
                job = execution.job(attempt, transform)
                execution.run_attempt(attempt=attempt, job=job, engine=engine, code=code)
                assemble(execution.sink, attempt)
            if sink.manifest(attempt.batch, attempt.epoch) is None:
                raise EngineError(f"batch {key} attempt {attempt.epoch}: Spark ended well but left no manifest.")
            if engine.stopped:
                raise AttemptCanceledError(f"batch {key} attempt {attempt.epoch} was stopped; its stage is dropped.")
            execution.keep(attempt, seconds=self.audit_seconds)
        except BaseException as error:
            state = "canceled" if engine.stopped else "failed"
            execution.abandon(attempt, state=state, error=error, engine=engine)
            if isinstance(error, Exception):
                with alarming(context):
                    execution.alarm_if_due(attempt, engine=engine, error=error)
            raise
        stages = {name: stage.arguments for name, stage in job.stages.items()}
        first = next(iter(stages.values()))
        handed_on = {"key": str(key), "epoch": attempt.epoch, "stage": first.get("path"), "format": first.get("format")}
        if not sink.definition.names:
            return handed_on
        by_name = {name: {"stage": found.get("path"), "format": found.get("format")} for name, found in stages.items()}
        return {**handed_on, "stages": by_name}

    def _open(self, execution: Execution, key: BatchKey, context: Context, *, code: Code, engine: Engine) -> Attempt:
        while True:
            look = look_or_skip(execution, key, context, code)
            if look.is_done:
                raise AirflowSkipException(f"batch {key} is committed already, and nobody asked to replay it.")
            attempt = execution.open_next(look, run=identity_of(context), code=code, engine=engine)
            if attempt is not None:
                return attempt

    def on_kill(self) -> None:
        """Stop Spark. ``execute`` goes on, finds that the engine was stopped, and leaves no stage."""
        if self._running is not None:
            self._running.stop()

    def engine(self) -> Engine:
        """The engine that runs the batch, by the type of the connection."""
        return engine_for(Wanted(conn_id=self.conn_id, conf=self.conf, arguments=self._engine_arguments()))

    def _engine_arguments(self) -> dict[str, Any]:
        return {
            "properties_file": self.properties_file,
            "deploy_mode": self._deploy_mode,
            "env_vars": self.env_vars,
            "files": self.files,
            "spark_binary": self._spark_binary,
            "archives": self._archives,
            "driver_class_path": self.driver_class_path,
            "jars": self.jars,
            "packages": self.packages,
            "exclude_packages": self.exclude_packages,
            "repositories": self._repositories,
            "total_executor_cores": self._total_executor_cores,
            "executor_cores": self._executor_cores,
            "executor_memory": self._executor_memory,
            "driver_memory": self._driver_memory,
            "keytab": self.keytab,
            "principal": self.principal,
            "proxy_user": self.proxy_user,
            "num_executors": self._num_executors,
            "verbose": self._verbose,
            "yarn_queue": self._yarn_queue,
            "use_krb5ccache": self._use_krb5ccache,
        }


class CommitMicroBatchOperator(BaseOperator):
    """Publish the attempt that submit names, and commit the batch. A task that runs again only repeats the commit.

    XCom: the batch's summary.

    :param pipeline: the pipeline to commit.
    :param submitted: the XCom of submit. (templated)
    :param max_active_tis_per_dag: 1, as batches of a pipeline are serial.
    :param map_index_template: label in the grid; ``batch_label`` is ``batch 5 · 1,000 rows``.
    """

    template_fields: Sequence[str] = ("submitted",)
    ui_color = "#e2d9f3"

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        submitted: Mapping[str, Any] | XComArg,
        max_active_tis_per_dag: int | None = 1,
        map_index_template: str | None = LABEL,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_active_tis_per_dag=max_active_tis_per_dag, map_index_template=map_index_template, **kwargs)
        self.pipeline = check_runnable(pipeline, operator=f"task {self.task_id!r}")
        self.submitted: Any = submitted
        self._stopped = False

    @lifetime()
    def execute(self, context: Context) -> dict[str, Any]:
        """:return: the batch's summary."""
        submitted = _handed_on(self.submitted, by="submit")
        key, epoch = BatchKey.parse(submitted["key"]), int(submitted["epoch"])
        execution = open_execution(self.pipeline, lane=key.lane)
        set_label(context, batch_label(key))
        attempt = execution.checkpoint.attempts.get(key, epoch)
        if attempt is None:
            raise BrokenLogError(
                f"batch {key} has no attempt {epoch} in {execution.checkpoint.location}. Clear the submit task."
            )
        manifest = execution.publish(attempt, should_stop=lambda: self._stopped)
        execution.commit(key=key, manifest=manifest, run=identity_of(context))
        # Ask with the run of the attempt, which has the clear that submit ran for: a clear of this task alone only
        # repeats the commit.
        planned = execution.load(key)
        why_again = still_wanted(execution.checkpoint, attempt, manifest, run=attempt.run, planned=planned)
        if why_again is not None:
            raise OutrunError(f"{why_again} Clear the submit task.")
        summary = summarize(execution.checkpoint, key)
        set_label(context, summary.label)
        return summary.to_dict()

    def on_kill(self) -> None:
        """Publish nothing from here on; a batch that is published already is committed."""
        self._stopped = True


def _handed_on(value: Any, *, by: str) -> Any:
    """The value that the task before has returned.

    :raises AirflowFailException: if that task has returned nothing; a retry would change nothing.
    """
    if value is None:
        raise AirflowFailException(
            f"the {by} task of this run has handed nothing on, as where a user marks it as success. Nothing was done. "
            f"Clear the {by} task, with those after it."
        )
    return value


def look_or_skip(execution: Execution, key: BatchKey, context: Context, code: Code, *, any_task: bool = False) -> Look:
    """Look what is to be done at the batch.

    :param any_task: the caller begins no attempt, so other tasks of its run are not in its way.
    :raises AirflowSkipException: if another run, or another task of this run, is at the batch; the message names it.
    """
    try:
        return execution.look(
            key,
            identity_of(context),
            engine_of=find_engine,
            code=code,
            goes_on=lambda run: run_goes_on(run, context),
            any_task=any_task,
        )
    except BatchInProgressError as held:
        raise AirflowSkipException(str(held)) from None


def micro_batch_steps(
    pipeline: Pipeline,
    *,
    audit: Callable[..., Any] | Iterable[Callable[..., Any]] = (),
    group_id: str = "micro_batch",
    **submit_arguments: Any,
) -> TaskGroup:
    """A task group of plan, submit, the audits and commit.

    :param pipeline: the pipeline to run.
    :param audit: one callable or several. Each is called once, while the DAG is parsed, with submit's XCom
        (``{"key", "epoch", "stage", "format"}``) and returns tasks; a plain function becomes a ``@task``. All these
        tasks run between submit and commit. An audit that raises leaves the batch planned: nothing is published, and
        the stage is kept until the batch's next attempt begins.
    :param group_id: name of the group.
    :param submit_arguments: further arguments of :class:`SubmitMicroBatchOperator`, such as ``conn_id`` and ``conf``.
    :raises DefinitionError: if the DAG allows more than one run at once, or has another task that makes batches of the
        checkpoint.
    """
    dag = DagContext.get_current()
    if dag is not None and dag.max_active_runs != 1:
        raise DefinitionError(
            f"DAG {dag.dag_id!r} has max_active_runs={dag.max_active_runs}, but only one run may be between plan and "
            f"commit of pipeline {check_pipeline(pipeline, operator=group_id).name!r}. Write max_active_runs=1."
        )
    with TaskGroup(group_id=group_id) as group:
        plan = PlanMicroBatchOperator(task_id="plan", pipeline=pipeline)
        submit = SubmitMicroBatchOperator(task_id="submit", pipeline=pipeline, key=plan.output, **submit_arguments)
        commit = CommitMicroBatchOperator(task_id="commit", pipeline=pipeline, submitted=submit.output)
        for check in [audit] if callable(audit) else audit:
            submit >> _audit_tasks(check, submit.output) >> commit
    return group


def _audit_tasks(check: Callable[..., Any], staged: Any) -> list[Any]:
    decorated = check if hasattr(check, "operator_class") else task(check)
    made = decorated(staged)
    return list(made) if isinstance(made, (list, tuple)) else [made]
