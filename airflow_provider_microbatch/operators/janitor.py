"""The janitor as a task, which guarantees that nothing of a killed task stays behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.engines.lookup import find_engine
from airflow_provider_microbatch.exceptions import DefinitionError, MicroBatchError
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.operators.micro_batch import check_pipeline
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.upkeep.janitor import GRACE_SECONDS, Janitor
from airflow_provider_microbatch.upkeep.janitor_report import JanitorReport

if TYPE_CHECKING:
    from airflow.sdk import Context


class MicroBatchJanitorOperator(BaseOperator):
    """Drop the stages of dead attempts, call the job status hooks that were left uncalled, remove replaced output,
    apply retention. Live attempts and published data are never touched. Run the janitor on the workers' hosts, every
    few minutes.

    XCom: a report of what was done, for each checkpoint.

    :param pipelines: the pipelines to clean up after. The janitor uses their own sinks and hooks, so no class has to be
        trusted.
    :param checkpoints: checkpoints to clean up, by address: a checkpoint has on record what the janitor needs of its
        pipeline. Of the classes that a checkpoint names, the janitor loads those of this package, of installed entry
        points and of ``[microbatch] trusted_modules``; of the servers, it speaks to those of ``trusted_servers``. Any
        other class or server is reported.
    :param grace_seconds: how long output that a replay has replaced is kept for readers, in seconds.
    :param only_say: report what would be done, and do nothing.
    """

    ui_color = "#e2d9f3"

    def __init__(
        self,
        *,
        pipelines: Sequence[Pipeline] = (),
        checkpoints: Sequence[str] = (),
        grace_seconds: float = GRACE_SECONDS,
        only_say: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        where = f"task {self.task_id!r}"
        if isinstance(pipelines, Pipeline) or isinstance(checkpoints, str) or not (pipelines or checkpoints):
            raise DefinitionError(f"{where}: give a list of at least one: pipelines=[…] or checkpoints=[…].")
        if grace_seconds < 0:
            raise DefinitionError(f"{where}: grace_seconds must be 0 or more, not {grace_seconds!r}.")
        self.pipelines = [check_pipeline(pipeline, operator=where) for pipeline in pipelines]
        self.checkpoints = list(checkpoints)
        self.grace_seconds = grace_seconds
        self.only_say = only_say

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Clean up each checkpoint; a checkpoint that cannot be cleaned up does not keep the others waiting.

        :return: the reports.
        :raises AirflowException: at the end, if something was left undone; a later run does the rest.
        """
        work: list[tuple[str, Pipeline | None]] = [
            *((pipeline.checkpoint, pipeline) for pipeline in self.pipelines),
            *((location, None) for location in self.checkpoints),
        ]
        reports, problems = [], []
        for location, pipeline in work:
            try:
                with lifetime():
                    report = self._clean_up(location, pipeline)
            except Exception as error:
                # Sinks and engines may be a user's: whatever they raise, the next checkpoint is cleaned up.
                self.log.exception("the janitor cannot clean up after %s", location)
                told = error if isinstance(error, (MicroBatchError, OSError)) else f"{type(error).__name__}: {error}"
                problems.append(f"{location}: {told}")
                continue
            reports.append(report.to_dict())
            problems += report.problems
        if problems:
            raise AirflowException("the janitor could not do everything:\n" + "\n".join(problems))
        return reports

    def _clean_up(self, location: str, pipeline: Pipeline | None) -> JanitorReport:
        return Janitor(
            checkpoint=Checkpoint(open_store(location), sources=[] if pipeline is None else [*pipeline.sources]),
            sinks=[] if pipeline is None else [pipeline.sink],
            hooks=[] if pipeline is None else pipeline.hooks,
            engine_of=find_engine,
            grace_seconds=self.grace_seconds,
            dry_run=self.only_say,
        ).run()
