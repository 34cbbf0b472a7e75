"""A table of Tablestore with a tunnel and a checkpoint, read batch by batch without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.runtime.channels import read_here
from airflow_provider_microbatch.sources import LATE, OpenSource, SourceContext
from airflow_provider_microbatch.sources.tablestore import TablestoreSource
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.support import tablestore


class World:
    """A table with a tunnel, a checkpoint, and what batches have read.

    :param arguments: of the source.
    """

    def __init__(self, root: Path, *, shards: int = 1, **arguments: Any) -> None:
        self.table = tablestore.Table(shards=shards)
        self.arguments = {"idle_seconds": 0, "discover_seconds": 0, "timeout": 30, **arguments}
        self.store = PosixStore(root / "checkpoint")
        self.committed: str | None = None
        self.told: Mapping[str, Any] = {}

    def open(self, **arguments: Any) -> OpenSource:
        """The source, by the client of the task."""
        context = SourceContext(
            name="orders",
            log=self.store.scoped("log"),
            state=self.store.scoped("state"),
            clock_ms=now_ms,
            connect=tablestore.connection,
        )
        given = {**self.arguments, **arguments}
        return TablestoreSource(self.table.name, self.table.tunnel, conn_id="tablestore", **given).open(context)

    def read(self, start: str | None, end: str | None = None, **arguments: Any) -> list[str]:
        """What an attempt reads, up to an end or to where it comes."""
        source = self.open(**arguments)
        read = source.read_late(start) if end is None else source.read(start, end)
        rows, self.told = read_here(json.loads(json.dumps(read.arguments)), source.secrets())
        return [key for row in rows for _, key in row[1]]

    def batch(self, *, says_so: bool = True, **arguments: Any) -> list[str] | None:
        """The next batch; None if there is none.

        :param says_so: whether whoever commits it lives long enough to tell the source.
        """
        source = self.open(**arguments)
        if source.latest_offset(self.committed) is not LATE:
            return None
        start = source.initial_offset() if self.committed is None else self.committed
        found = self.read(start, **arguments)
        self.committed = source.resolve(start, self.told)
        if says_so:
            self.commit()
        return found

    def commit(self) -> None:
        """Tell the source what is committed."""
        assert self.committed is not None
        self.open().commit(self.committed)

    @property
    def position(self) -> dict[str, Any]:
        """Where batches are."""
        found: dict[str, Any] = json.loads(self.committed or "{}")
        return found

    def backdate(self, ms: int) -> None:
        """The last batch was so long ago."""
        position = {channel: {**at, "seen": at["seen"] - ms} for channel, at in self.position.items()}
        self.committed = json.dumps(position, separators=(",", ":"), sort_keys=True)
