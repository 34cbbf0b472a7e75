"""A job status hook that tells the world what it was told, and fails when the world says so."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_microbatch.job_status import JobContext, JobStatusHook
from tests.simulator.seams import world


@dataclass(frozen=True)
class Told(JobStatusHook):
    """:param name: tells the hooks of a pipeline apart."""

    name: str = "told"

    def on_created(self, context: JobContext) -> None:
        self._tell("created", context)

    def on_finished(self, context: JobContext) -> None:
        self._tell("finished", context)

    def on_failed(self, context: JobContext, error: str) -> None:
        self._tell("failed", context)

    def on_canceled(self, context: JobContext) -> None:
        self._tell("canceled", context)

    def _tell(self, status: str, context: JobContext) -> None:
        played = world()
        played.point(f"hook {self.name} on_{status} of {context.key} attempt {context.epoch}")
        if played.hooks_fail or (self.name in played.deaf_hooks and status != "created"):
            raise OSError("the hook's own trouble")
        attempt = (context.pipeline, context.key, context.epoch, played.subjects[context.pipeline].kept is None)
        played.told.setdefault(attempt, []).append(f"{self.name} {status}")
