"""The last task of a job's run, which tells the hooks of the job how the run ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import MicroBatchError
from airflow_provider_microbatch.graph.status import JobRunHook, JobStatus, RunEnd, end_of, life_of
from airflow_provider_microbatch.job_status import CANCELED
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.task_context.run_context import identity_of, open_checkpoint, run_goes_on

if TYPE_CHECKING:
    from airflow.sdk import Context


class JobStatusOperator(BaseOperator):
    """Tell the hooks of a job how this run of the job ended, and how earlier runs ended whose tasks are gone.

    The task is a teardown: it runs whatever becomes of the pipelines, also in a run that a user has marked as failed,
    and a run whose pipelines have failed stays red. A killed task is tried again, and does not tell the hooks again
    what they have been told.

    :param job: name of the job.
    :param checkpoint: the address below which the job's checkpoints lie.
    :param hooks: the hooks of the job.
    :param parts: the pipelines of the job by the ids of their tasks.
    """

    ui_color = "#e2d9f3"

    def __init__(
        self,
        *,
        job: str,
        checkpoint: str,
        hooks: Sequence[JobRunHook],
        parts: Mapping[str, Pipeline],
        retries: int = 3,
        retry_delay: float = 10.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.job = job
        self.checkpoint = checkpoint
        self.hooks = tuple(hooks)
        self.parts = dict(parts)

    @lifetime()
    def execute(self, context: Context) -> str | None:
        """Tell the hooks.

        :return: how the run ended; None if no pipeline of the run has begun.
        :raises HookError: if a hook fails; a retry and the next runs call the hook again.
        """
        run, status = identity_of(context), JobStatus(self.job, checkpoint=self.checkpoint, hooks=self.hooks)
        for left in status.open_runs(but=run):
            if left.run_id != run.run_id and run_goes_on(left, context):
                continue
            self.log.info("Run %s was left without an end", left.run_id)
            try:
                status.end(left, partial(self._end_of, left, run, context))
            except MicroBatchError as error:
                self.log.warning("%s", error)
        end = status.end(run, partial(self._end_of, run, run, context))
        self.log.info("The run of job %r is %s", self.job, "one that no pipeline has begun" if end is None else end)
        return None if end is None else end.status

    def _end_of(self, run: RunIdentity, asking: RunIdentity, context: Context) -> RunEnd:
        if run.run_id == asking.run_id and life_of(run) != life_of(asking):
            return RunEnd(status=CANCELED)  # cleared before it ended: the tasks now belong to the next life
        ti: Any = context["ti"]
        try:
            found = ti.get_task_states(dag_id=run.dag_id, task_ids=list(self.parts), run_ids=[run.run_id])
        except AirflowRuntimeError:
            found = {}
        states = {task: found.get(run.run_id, {}).get(task) for task in self.parts}
        ends = {task: _end_on_record(one, run) for task, one in self.parts.items() if states[task] != "success"}
        # Airflow calls a task failed that a user marks just as the task ends, although its batch is in the table.
        states |= dict.fromkeys((task for task, end in ends.items() if end == "succeeded"), "success")
        return end_of(states, canceled=[task for task, end in ends.items() if end == CANCELED])


def _end_on_record(pipeline: Pipeline, run: RunIdentity) -> str | None:
    """How the run's attempt at the newest batch ended; None if the run made no attempt, or its end is not known.

    Where no end is on record, a mark counts: a user's mark may be there before the attempt has ended."""
    checkpoint = open_checkpoint(pipeline)
    newest = checkpoint.lane(LIVE).offset_log.latest_id()
    if newest is None:
        return None
    key = BatchKey(LIVE, newest)
    for attempt in reversed(checkpoint.attempts.all(key)):
        if attempt.run is not None and (attempt.run.dag_id, attempt.run.run_id) == (run.dag_id, run.run_id):
            end = checkpoint.attempts.ended(key, attempt.epoch)
            if end is not None:
                return end.state
            mark = checkpoint.marks.of(attempt)
            return None if mark is None else mark.status
    return None
