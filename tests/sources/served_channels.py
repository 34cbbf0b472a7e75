"""A source of channels with a checkpoint, read batch by batch without Spark."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.connections import Connect
from airflow_provider_microbatch.runtime.channels import read_here
from airflow_provider_microbatch.sources import LATE, OpenSource, SourceContext
from airflow_provider_microbatch.sources.channels import ChannelSource
from airflow_provider_microbatch.stores.posix import PosixStore


class ChannelWorld(ABC):
    """A checkpoint, and what batches have read.

    :param connect: finds the connection.
    :param arguments: of the source.

    ``ahead_ms`` is by how much the clock of whoever plans is ahead.
    """

    def __init__(self, root: Path, *, connect: Connect, **arguments: Any) -> None:
        self.arguments = {"idle_seconds": 0, "discover_seconds": 0, "timeout": 30, **arguments}
        self.store = PosixStore(root / "checkpoint")
        self.committed: str | None = None
        self.told: Mapping[str, Any] = {}
        self.ahead_ms = 0
        self._connect = connect

    @abstractmethod
    def source(self, **arguments: Any) -> ChannelSource:
        """Its definition."""

    @abstractmethod
    def sent(self, rows: Sequence[tuple[Any, ...]]) -> list[str]:
        """What was sent as these rows."""

    def open(self, **arguments: Any) -> OpenSource:
        """The source, by the client of the task."""
        context = SourceContext(
            name="orders",
            log=self.store.scoped("log"),
            state=self.store.scoped("state"),
            clock_ms=lambda: now_ms() + self.ahead_ms,
            connect=self._connect,
        )
        return self.source(**{**self.arguments, **arguments}).open(context)

    def read(self, start: str | None, end: str | None = None, **arguments: Any) -> list[str]:
        """What an attempt reads, up to an end or to where it comes."""
        source = self.open(**arguments)
        read = source.read_late(start) if end is None else source.read(start, end)
        rows, self.told = read_here(json.loads(json.dumps(read.arguments)), source.secrets())
        return self.sent(rows)

    def batch(self, **arguments: Any) -> list[str] | None:
        """The next batch; None if there is none."""
        source = self.open(**arguments)
        if source.latest_offset(self.committed) is not LATE:
            return None
        start = source.initial_offset() if self.committed is None else self.committed
        found = self.read(start, **arguments)
        self.committed = source.resolve(start, self.told)
        return found

    @property
    def position(self) -> dict[str, Any]:
        """Where batches are."""
        found: dict[str, Any] = json.loads(self.committed or "{}")
        return found

    def backdate(self, ms: int, *, only: Collection[str] = ("seen", "open", "came")) -> None:
        """The last batch was so long ago.

        :param only: what of its position: ``came``, if nothing had come for so long before it.
        """
        position = {
            channel: {key: value - ms if key in only else value for key, value in at.items()}
            for channel, at in self.position.items()
        }
        self.committed = json.dumps(position, separators=(",", ":"), sort_keys=True)
