"""A hook that writes down what it is told, as any process can."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from airflow_provider_microbatch.job_status import JobContext, JobStatusHook


@dataclass(frozen=True)
class Diary(JobStatusHook):
    """Appends a line a call to ``path``; fails in the method that the first line of ``<path>.fails`` names: once, if
    there is a second line."""

    path: str
    name: str = "diary"

    def on_created(self, context: JobContext) -> None:
        self._write("created", context)

    def on_finished(self, context: JobContext) -> None:
        self._write("finished", context)

    def on_failed(self, context: JobContext, error: str) -> None:
        self._write("failed", context, error)

    def on_canceled(self, context: JobContext) -> None:
        self._write("canceled", context)

    def _write(self, status: str, context: JobContext, error: str = "") -> None:
        with Path(self.path).open("a") as file:
            file.write(f"{self.name} {status} {context.key} {context.epoch} {error.splitlines()[0] if error else ''}\n")
        fails = Path(f"{self.path}.fails")
        method, *once = fails.read_text().splitlines() if fails.exists() else [""]
        if method == f"{self.name} {status}":
            if once:
                fails.unlink()
            raise OSError("the hook's own trouble")


def lines(path: Path, words: int = 4) -> list[str]:
    """What was written down: name, status, batch, attempt."""
    found = path.read_text().splitlines() if path.exists() else []
    return [" ".join(line.split()[:words]) for line in found]
