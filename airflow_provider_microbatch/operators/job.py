"""A job graph in a DAG: each pipeline is a task group, and goes on whatever becomes of the other pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskGroup, conf
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.execution.labels import batch_label
from airflow_provider_microbatch.graph import JobGraph
from airflow_provider_microbatch.graph.pause import pause_of
from airflow_provider_microbatch.graph.sinks_on_record import check_sinks
from airflow_provider_microbatch.graph.status import JobRunHook, JobStatus
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.operators.job_status import JobStatusOperator
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator, set_label
from airflow_provider_microbatch.sensors.job_data import RETRY_SECONDS, JobDataSensor
from airflow_provider_microbatch.task_context.complete import SKIP
from airflow_provider_microbatch.task_context.run_context import identity_of, is_backfill, open_checkpoint

if TYPE_CHECKING:
    from airflow.sdk import Context


class JobPipelineOperator(MicroBatchOperator):
    """The next micro-batch of one pipeline of a job.

    A batch that failed is tried again by the next run, not by retries of the task, which would hold up the run and with
    it the other pipelines. Until the pause of the pipeline is over the task fails at once, without Spark: the square is
    red for as long as the table stands still. A data interval has one run only, so its batch has the retries of the
    task, and no pause.

    :param job: the address below which the job's checkpoints lie.
    :param part: name of the pipeline in its job.
    :param sinks: names of the pipeline's sinks.
    :param run_hooks: name of the job, and the job's hooks, which are told that the run has begun.
    :param retry_seconds: how long the pipeline is left alone after its batch failed, in seconds; twice as long after
        each further failure, up to an hour. A cleared task is not kept waiting.
    """

    def __init__(
        self,
        *,
        job: str,
        part: str,
        sinks: tuple[str, ...],
        run_hooks: tuple[str, tuple[JobRunHook, ...]] = ("", ()),
        retry_seconds: float = RETRY_SECONDS,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.part = part
        self.sinks = sinks
        self.run_hooks = run_hooks
        self.retry_seconds = retry_seconds

    @lifetime()
    def execute(self, context: Context) -> dict[str, Any]:
        """Make one batch.

        :raises AirflowFailException: while the pause after a failure lasts.
        :raises DefinitionError: if another pipeline of the job has written one of the sinks.
        :raises HookError: if a hook of the job refuses the run.
        """
        name, hooks = self.run_hooks
        if hooks:
            JobStatus(name, checkpoint=self.job, hooks=hooks).begin(identity_of(context))
        check_sinks(self.job, pipeline=self.part, sinks=self.sinks)
        # A data interval has one run, no later run would make up for it, and the run does not read what is new.
        reads_new = self.pipeline.plan == LIVE and not is_backfill(context)
        if reads_new and not identity_of(context).was_cleared:
            pause = pause_of(open_checkpoint(self.pipeline), first_seconds=self.retry_seconds)
            if pause is not None:
                set_label(context, batch_label(pause.key))
                raise AirflowFailException(f"pipeline {self.pipeline.name!r}: {pause}. Clear this task to try it now.")
        return super().execute(context)


def micro_batch_job(
    graph: JobGraph,
    *,
    wait: bool = True,
    poke_interval: float = 10,
    deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
    retry_seconds: float = RETRY_SECONDS,
    when_complete: str = SKIP,
    group_id: str | None = None,
    operator: type[JobPipelineOperator] = JobPipelineOperator,
    **operator_arguments: Any,
) -> TaskGroup:
    """A task group of a job, with a task group for each pipeline. No pipeline waits for another; a pipeline that fails
    makes the run red, and the other pipelines keep their tables fresh.

    :param graph: the job.
    :param wait: begin with a sensor that waits until any of the pipelines has a batch to make.
    :param poke_interval: seconds between two looks of the sensor.
    :param deferrable: the sensor waits in the triggerer.
    :param retry_seconds: how long a pipeline is left alone after its batch failed, in seconds; twice as long after each
        further failure, up to an hour.
    :param when_complete: what becomes of a run when all sources of all pipelines are finished: ``skip`` or ``pause``,
        see :class:`~airflow_provider_microbatch.sensors.job_data.JobDataSensor`.
    :param group_id: id of the task group; by default the name of the job.
    :param operator: a subclass of the pipelines' operator, in its place.
    :param operator_arguments: further arguments of each
        :class:`~airflow_provider_microbatch.operators.micro_batch.MicroBatchOperator`, such as ``conn_id``.
    :raises DefinitionError: as the graph raises it, and for a wrong type.
    """
    if not isinstance(graph, JobGraph):
        raise DefinitionError(f"micro_batch_job is given a {type(graph).__name__}, not a JobGraph.")
    if not wait and when_complete != SKIP:
        raise DefinitionError("micro_batch_job: when_complete is the sensor's, which wait=False leaves out.")
    with TaskGroup(group_id=group_id or graph.name) as group:
        sensor = (
            JobDataSensor(
                task_id="new_data",
                pipelines=graph.pipelines,
                retry_seconds=retry_seconds,
                poke_interval=poke_interval,
                deferrable=deferrable,
                when_complete=when_complete,
            )
            if wait
            else None
        )
        parts: list[JobPipelineOperator] = []
        for name, pipeline in graph.by_name().items():
            # Given explicitly: else a DAG's default_args would have the run wait for the retries of one pipeline. A
            # data interval has no other run that would try its batch again.
            tries = {"retries": 0} if pipeline.plan == LIVE else {}
            with TaskGroup(group_id=name):
                task = operator(
                    task_id="micro_batch",
                    pipeline=pipeline,
                    job=graph.checkpoint,
                    part=name,
                    sinks=graph.sinks_of(name),
                    run_hooks=(graph.name, graph.run_hooks),
                    retry_seconds=retry_seconds,
                    **{**tries, **operator_arguments},
                )
            parts.append(task)
            if sensor is not None:
                sensor >> task
        if graph.run_hooks:
            status = JobStatusOperator(
                task_id="job_status",
                job=graph.name,
                checkpoint=graph.checkpoint,
                hooks=graph.run_hooks,
                parts={task.task_id: task.pipeline for task in parts},
            )
            parts >> status.as_teardown()
    return group
