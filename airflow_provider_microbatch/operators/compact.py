"""A compaction as a task: small files of a pipeline's tables become few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.exceptions import DefinitionError, MicroBatchError
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.operators.micro_batch import check_pipeline
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.compaction import TARGET_BYTES
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.upkeep.compaction import TableReport, compact

if TYPE_CHECKING:
    from airflow.sdk import Context


class CompactOperator(BaseOperator):
    """Join the small files of pipelines' tables. Each batch stays known, and can be replayed, as before; readers see
    the old files or the new, never both. It may run beside the tasks that make batches, and again after it was killed.

    XCom: for each table what was done, with files and bytes before and after, and the batches that were left, with the
    reasons.

    :param pipelines: the pipelines whose tables are compacted.
    :param checkpoints: checkpoints of pipelines whose tables are compacted, by address. Of the classes that a
        checkpoint names, those of this package, of installed entry points and of ``[microbatch] trusted_modules`` are
        loaded.
    :param target_bytes: the size that a joined file has at most, in bytes.
    :param only_say: report what would be done, and do nothing.
    """

    ui_color = "#e2d9f3"

    def __init__(
        self,
        *,
        pipelines: Sequence[Pipeline] = (),
        checkpoints: Sequence[str] = (),
        target_bytes: int = TARGET_BYTES,
        only_say: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        where = f"task {self.task_id!r}"
        if isinstance(pipelines, Pipeline) or isinstance(checkpoints, str) or not (pipelines or checkpoints):
            raise DefinitionError(f"{where}: give a list of at least one: pipelines=[…] or checkpoints=[…].")
        if not isinstance(target_bytes, int) or isinstance(target_bytes, bool) or target_bytes < 1:
            raise DefinitionError(f"{where}: target_bytes must be 1 or more, not {target_bytes!r}.")
        self.pipelines = [check_pipeline(pipeline, operator=where) for pipeline in pipelines]
        self.checkpoints = list(checkpoints)
        self.target_bytes = target_bytes
        self.only_say = only_say

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Compact the tables of each pipeline; one that cannot be compacted does not keep the others waiting.

        :return: the reports of all tables.
        :raises AirflowException: at the end, if a table was not compacted to its end; a later run does the rest.
        """
        work: list[tuple[str, Pipeline | None]] = [
            *((pipeline.checkpoint, pipeline) for pipeline in self.pipelines),
            *((location, None) for location in self.checkpoints),
        ]
        reports, problems = list[TableReport](), list[str]()
        for location, pipeline in work:
            try:
                with lifetime():
                    reports += self._compact(location, pipeline)
            except Exception as error:
                # Sinks may be a user's: whatever they raise, the next pipeline's tables are compacted.
                self.log.exception("the tables of %s cannot be compacted", location)
                told = error if isinstance(error, (MicroBatchError, OSError)) else f"{type(error).__name__}: {error}"
                problems.append(f"{location}: {told}")
        problems += [f"{report.location}: {report.failed}" for report in reports if report.failed is not None]
        if problems:
            raise AirflowException("not everything was compacted:\n" + "\n".join(problems))
        return [report.to_dict() for report in reports]

    def _compact(self, location: str, pipeline: Pipeline | None) -> list[TableReport]:
        checkpoint = Checkpoint(open_store(location), sources=[] if pipeline is None else [*pipeline.sources])
        if checkpoint.identity() is None:
            self.log.warning("%s is no checkpoint yet: no pipeline has run there, so there is nothing to do", location)
            return []
        return compact(
            checkpoint,
            sinks=None if pipeline is None else [pipeline.sink.open(SinkContext())],
            target_bytes=self.target_bytes,
            dry_run=self.only_say,
        )
