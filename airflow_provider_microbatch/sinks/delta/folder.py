"""A Delta table's place on a file system."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_microbatch.sinks.delta.home import Footer
from airflow_provider_microbatch.sinks.file.posix import check_no_link, make_folders, sync


@dataclass(frozen=True)
class Folder:
    """:param root: the table's folder."""

    root: Path

    @property
    def where(self) -> str:
        return str(self.root)

    @property
    def uri(self) -> str:
        return self.root.as_uri()

    @property
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

    def source(self, path: str) -> Path:
        return self.root / path

    def size(self, path: str) -> int:
        return (self.root / path).stat().st_size

    def footer(self, path: str) -> Footer:
        from pyarrow import parquet

        file = self.root / path
        found = file.stat()
        return Footer(
            size=found.st_size, modified_ms=found.st_mtime_ns // 1_000_000, metadata=parquet.read_metadata(file)
        )

    def here(self, paths: Sequence[str]) -> AbstractContextManager[Sequence[Path]]:
        return nullcontext([self.root / path for path in paths])

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[Path]:
        file = self.root / path
        check_no_link(self.root, file.parent)
        make_folders(file.parent)
        yield file
        sync(file)
        sync(file.parent)

    def remove(self, path: str) -> None:
        with contextlib.suppress(OSError):
            (self.root / path).unlink()

    @property
    def _log(self) -> Path:
        return self.root / "_delta_log"
