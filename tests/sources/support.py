"""A landing folder, a checkpoint and a file source over them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.runtime.job import Read
from airflow_provider_microbatch.sources import OpenSource, SourceContext
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.log import SourceLog, offset_of
from airflow_provider_microbatch.sources.intervals import CommittedRange, HeldRange
from airflow_provider_microbatch.stores.posix import PosixStore

NOW_MS = 1_795_000_000_000


@dataclass
class World:
    """``root/landing`` beside ``root/<checkpoint>``; the clock stands at ``now_ms`` until a test moves it."""

    root: Path
    now_ms: int = NOW_MS
    checkpoint: str = "checkpoint"
    checkpoint_id: str | None = None
    being_read: list[HeldRange] = field(default_factory=list)
    committed: list[CommittedRange] | None = None
    """Of the live lane, the newest first; None: all that is in the source log, of all lanes."""

    @property
    def landing(self) -> Path:
        return self.root / "landing"

    @property
    def log(self) -> PosixStore:
        return PosixStore(self.root / self.checkpoint / "sources" / "orders")

    @property
    def state(self) -> PosixStore:
        return PosixStore(self.root / self.checkpoint / "state" / "orders")

    def land(self, name: str, text: str = '{"id": 1}\n', *, age: float = 3600) -> Path:
        """Write a file that is ``age`` seconds old."""
        path = self.landing / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        mtime_ns = self.now_ms * 1_000_000 - int(age * 1e9)
        os.utime(path, ns=(mtime_ns, mtime_ns))
        return path

    def open(self, path: str | None = None, *, lane: str = LIVE, **arguments: Any) -> OpenSource:
        """A fresh process's view of the source."""
        self.landing.mkdir(parents=True, exist_ok=True)
        arguments.setdefault("schema", "id long")
        context = SourceContext(
            name="orders",
            log=self.log,
            state=self.state,
            clock_ms=lambda: self.now_ms,
            checkpoint_id=lambda: self.checkpoint_id,
            lane=lane,
            being_read=lambda: self.being_read,
            committed=self._committed,
        )
        return FileSource(path or str(self.landing), **arguments).open(context)

    def _committed(self, lane: str) -> list[CommittedRange]:
        if self.committed is not None:
            return self.committed if lane == LIVE else []
        latest = SourceLog(self.log).names().latest
        return [CommittedRange(start=None, end=offset_of(latest), is_read=True)]

    def names(self, read: Read) -> list[str]:
        """Paths of a read, relative to the landing folder."""
        return [os.path.relpath(path, self.landing) for path in paths(read)]

    def drain(self, **arguments: Any) -> list[list[str]]:
        """Plan until nothing is new; the names of each batch."""
        batches: list[list[str]] = []
        position = None
        while True:
            source = self.open(**arguments)
            end = source.latest_offset(position)
            if end == position:
                return batches
            batches.append(self.names(source.read(position, end)))
            position = end

    def snapshot(self) -> dict[str, bytes]:
        """Every file below the root with its bytes."""
        return {str(path): path.read_bytes() for path in self.root.rglob("*") if path.is_file()}


def paths(read: Read) -> list[str]:
    """All paths of a read."""
    return [path for group in read.arguments["groups"] for path in group["paths"]]
