"""Upkeep as a task: the same work for each of several pipelines, one after the other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.exceptions import DefinitionError, MicroBatchError
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.operators.micro_batch import check_pipeline
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.stores.location import open_store

if TYPE_CHECKING:
    from airflow.sdk import Context


class Upkeep(BaseOperator):
    """Base of operators that work on pipelines by themselves or by their checkpoints.

    :param pipelines: the pipelines.
    :param checkpoints: checkpoints of pipelines, by address.
    :param only_say: report what would be done, and do nothing.
    """

    cannot: ClassVar[str]
    """What is logged of a pipeline for which the work fails; ``%s`` is the address of its checkpoint."""
    undone: ClassVar[str]
    """First line of the error of a task that has not done everything."""

    def __init__(
        self,
        *,
        pipelines: Sequence[Pipeline] = (),
        checkpoints: Sequence[str] = (),
        only_say: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(pipelines, Pipeline) or isinstance(checkpoints, str) or not (pipelines or checkpoints):
            raise DefinitionError(f"{self.where}: give a list of at least one: pipelines=[…] or checkpoints=[…].")
        self.pipelines = [check_pipeline(pipeline, operator=self.where) for pipeline in pipelines]
        self.checkpoints = list(checkpoints)
        self.only_say = only_say

    @property
    def where(self) -> str:
        """The task, for messages."""
        return f"task {self.task_id!r}"

    @abstractmethod
    def keep_up(self, checkpoint: Checkpoint, pipeline: Pipeline | None) -> tuple[list[dict[str, Any]], list[str]]:
        """Do the work for one pipeline.

        :param pipeline: None: the checkpoint alone is known.
        :return: the reports, and what was left undone.
        """

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Do the work for each pipeline; one for which it fails does not keep the others waiting.

        :return: the reports.
        :raises AirflowException: at the end, if something was left undone; a later run does the rest.
        """
        work: list[tuple[str, Pipeline | None]] = [
            *((pipeline.checkpoint, pipeline) for pipeline in self.pipelines),
            *((location, None) for location in self.checkpoints),
        ]
        reports, problems = list[dict[str, Any]](), list[str]()
        for location, pipeline in work:
            try:
                with lifetime():
                    sources = [] if pipeline is None else [*pipeline.sources]
                    told, left = self.keep_up(Checkpoint(open_store(location), sources=sources), pipeline)
            except Exception as error:
                # Sinks and engines may be a user's: whatever they raise, the next pipeline has its turn.
                self.log.exception(self.cannot, location)
                why = error if isinstance(error, (MicroBatchError, OSError)) else f"{type(error).__name__}: {error}"
                problems.append(f"{location}: {why}")
                continue
            reports += told
            problems += left
        if problems:
            raise AirflowException(f"{self.undone}:\n" + "\n".join(problems))
        return reports
