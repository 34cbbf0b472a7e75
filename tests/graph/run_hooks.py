"""Hooks of a job that write down what they are told, as any process can."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from airflow_provider_microbatch.graph.status import JobRunContext, JobRunHook


@dataclass(frozen=True)
class RunDiary(JobRunHook):
    """Appends a line a call to ``path``; fails in the method that ``<path>.fails`` names."""

    path: str

    def on_created(self, context: JobRunContext) -> None:
        self._write("created", context)

    def on_finished(self, context: JobRunContext) -> None:
        self._write("finished", context)

    def on_failed(self, context: JobRunContext, error: str) -> None:
        self._write("failed", context, error)

    def on_canceled(self, context: JobRunContext) -> None:
        self._write("canceled", context)

    def _write(self, status: str, context: JobRunContext, error: str = "") -> None:
        with Path(self.path).open("a") as file:
            file.write(" ".join([status, context.job, context.run.run_id, error]).strip() + "\n")
        fails = Path(f"{self.path}.fails")
        if fails.exists() and fails.read_text() == status:
            raise OSError("the hook's own trouble")


def told(path: Path, run_id: str) -> list[str]:
    """What was told of a run: statuses, with their errors."""
    lines = [line.split(" ", 3) for line in path.read_text().splitlines()] if path.exists() else []
    return [" ".join([status, *error]) for status, _, run, *error in lines if run == run_id]
