"""A compaction as a task: small files of a pipeline's tables become few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.operators.upkeep import Upkeep
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.compaction import TARGET_BYTES
from airflow_provider_microbatch.upkeep.compaction import compact


class CompactOperator(Upkeep):
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
    cannot = "the tables of %s cannot be compacted"
    undone = "not everything was compacted"

    def __init__(
        self,
        *,
        pipelines: Sequence[Pipeline] = (),
        checkpoints: Sequence[str] = (),
        target_bytes: int = TARGET_BYTES,
        only_say: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(pipelines=pipelines, checkpoints=checkpoints, only_say=only_say, **kwargs)
        if not isinstance(target_bytes, int) or isinstance(target_bytes, bool) or target_bytes < 1:
            raise DefinitionError(f"{self.where}: target_bytes must be 1 or more, not {target_bytes!r}.")
        self.target_bytes = target_bytes

    def keep_up(self, checkpoint: Checkpoint, pipeline: Pipeline | None) -> tuple[list[dict[str, Any]], list[str]]:
        """Compact the tables of one pipeline; one that cannot be compacted does not keep the others waiting."""
        if checkpoint.identity() is None:
            self.log.warning(
                "%s is no checkpoint yet: no pipeline has run there, so there is nothing to do", checkpoint.location
            )
            return [], []
        reports = compact(
            checkpoint,
            sinks=None if pipeline is None else [pipeline.sink.open(SinkContext())],
            target_bytes=self.target_bytes,
            dry_run=self.only_say,
        )
        failed = [f"{report.location}: {report.failed}" for report in reports if report.failed is not None]
        return [report.to_dict() for report in reports], failed
