"""Sinks whose stages are files in a folder, which the runtime writes and fences as those of a table of files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.sinks.file import FileSink


class StagedInFiles(OpenSink):
    """A sink that leaves its stages' reports and fence marks to a sink of files, and publishes in a way of its own."""

    _files: FileSink

    def failure(self, batch: BatchIdentity, epoch: int) -> Mapping[str, Any] | None:
        return self._files.failure(batch, epoch)

    def fence(self, batch: BatchIdentity, epoch: int, *, by: str) -> None:
        self._files.fence(batch, epoch, by=by)

    def drop_fences(self, checkpoint: str, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        return self._files.drop_fences(checkpoint, older_seconds=older_seconds, dry_run=dry_run)
