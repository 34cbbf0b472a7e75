"""A Delta table's place on a file system."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from airflow_provider_microbatch.sinks.file.posix import sync
from airflow_provider_microbatch.sinks.placed.data_files import FolderFiles


class Folder(FolderFiles):
    """The place of a table whose folder is :attr:`root`."""

    @property
    def where(self) -> str:
        return str(self.root)

    @property
    def uri(self) -> str:
        return self.root.as_uri()

    def in_python(self) -> str:
        return f"DeltaTable({self.uri!r})"

    def options(self) -> dict[str, str]:
        return {}

    def has_log(self) -> bool:
        return self._log.is_dir()

    def told(self, error: Exception) -> str:
        return str(error)

    def sync_log(self, *, since_ns: int) -> None:
        with os.scandir(self._log) as entries:
            for entry in entries:
                if entry.name.endswith(".json") and entry.stat().st_mtime_ns >= since_ns:
                    sync(Path(entry.path))
        sync(self._log)
        sync(self.root)  # the maker of the folder may have died before the folder was on disk

    def here(self, paths: Sequence[str]) -> AbstractContextManager[Sequence[Path]]:
        return nullcontext([self.root / path for path in paths])

    @property
    def _log(self) -> Path:
        return self.root / "_delta_log"
