"""A Delta table of orders that a source reads, written by delta-rs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from airflow_provider_microbatch.sources.delta.commits import Commits

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])


class OrdersOfDelta:
    """:param root: its folder. It is made, without a row."""

    def __init__(self, root: Path, *, change_feed: bool = False, partition_by: Sequence[str] = ()) -> None:
        self.root = root
        self._number = itertools.count()
        properties = {"delta.enableChangeDataFeed": "true"} if change_feed else {}
        DeltaTable.create(
            root.as_uri(), SCHEMA, partition_by=list(partition_by), configuration=dict(properties), mode="error"
        )

    @property
    def table(self) -> DeltaTable:
        """As it is now."""
        return DeltaTable(self.root.as_uri())

    @property
    def commits(self) -> Commits:
        return Commits(str(self.root))

    def append(self, count: int = 1, **columns: Any) -> list[int]:
        """One version with one file of so many orders; their ids."""
        ids = [next(self._number) for _ in range(count)]
        rows = [{"id": id, "note": "x", **columns} for id in ids]
        write_deltalake(self.root.as_uri(), pa.Table.from_pylist(rows, schema=SCHEMA), mode="append")
        return ids

    def add_files(self, count: int) -> list[int]:
        """One version with so many files, each of one order; their ids. What delta-rs does not do by itself."""
        first = self.table.version() + 1
        ids = [self.append()[0] for _ in range(count)]
        lines = []
        for version in range(first, first + count):
            path = self.commits.path(version)
            lines += [line for line in path.read_text().splitlines() if '"add"' in line or version == first]
            path.unlink()
        self.commits.path(first).write_text("\n".join(dict.fromkeys(lines)) + "\n")
        assert len([line for line in lines if "add" in json.loads(line)]) == count
        return ids

    def clean_log(self, up_to: int) -> None:
        """As the log's retention does: versions before it are told by a checkpoint alone."""
        self.table.create_checkpoint()
        for version in range(up_to):
            self.commits.path(version).unlink(missing_ok=True)
