"""A table of Tablestore with a tunnel and a checkpoint, read batch by batch without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.sources.tablestore import TablestoreSource
from tests.sources.served_channels import ChannelWorld
from tests.support import tablestore


class World(ChannelWorld):
    """A table with a tunnel, a checkpoint, and what batches have read.

    :param table: one that is there; None: a new one.
    :param arguments: of the source.
    """

    def __init__(self, root: Path, *, shards: int = 1, table: tablestore.Table | None = None, **arguments: Any) -> None:
        super().__init__(root, connect=tablestore.connection, **arguments)
        self.table = tablestore.Table(shards=shards) if table is None else table

    def source(self, **arguments: Any) -> TablestoreSource:
        return TablestoreSource(self.table.name, self.table.tunnel, conn_id="tablestore", **arguments)

    def sent(self, rows: Sequence[tuple[Any, ...]]) -> list[str]:
        return [key for row in rows for _, key in row[1]]

    def batch(self, *, says_so: bool = True, **arguments: Any) -> list[str] | None:
        """The next batch; None if there is none.

        :param says_so: whether whoever commits it lives long enough to tell the source.
        """
        found = super().batch(**arguments)
        if found is not None and says_so:
            self.commit()
        return found

    def commit(self) -> None:
        """Tell the source what is committed."""
        assert self.committed is not None
        self.open().commit(self.committed)
