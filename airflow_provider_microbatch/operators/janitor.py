"""The janitor as a task, which guarantees that nothing of a killed task stays behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.engines.lookup import find_engine
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.operators.upkeep import Upkeep
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.upkeep.janitor import GRACE_SECONDS, Janitor


class MicroBatchJanitorOperator(Upkeep):
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
    cannot = "the janitor cannot clean up after %s"
    undone = "the janitor could not do everything"

    def __init__(
        self,
        *,
        pipelines: Sequence[Pipeline] = (),
        checkpoints: Sequence[str] = (),
        grace_seconds: float = GRACE_SECONDS,
        only_say: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(pipelines=pipelines, checkpoints=checkpoints, only_say=only_say, **kwargs)
        if grace_seconds < 0:
            raise DefinitionError(f"{self.where}: grace_seconds must be 0 or more, not {grace_seconds!r}.")
        self.grace_seconds = grace_seconds

    def keep_up(self, checkpoint: Checkpoint, pipeline: Pipeline | None) -> tuple[list[dict[str, Any]], list[str]]:
        """Clean up after one pipeline."""
        report = Janitor(
            checkpoint=checkpoint,
            sinks=[] if pipeline is None else [pipeline.sink],
            hooks=[] if pipeline is None else pipeline.hooks,
            engine_of=find_engine,
            grace_seconds=self.grace_seconds,
            dry_run=self.only_say,
        ).run()
        return [report.to_dict()], list(report.problems)
