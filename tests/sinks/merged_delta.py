"""A Delta table into which the tests' changes are merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks import Manifest, OpenSink, SinkContext
from airflow_provider_microbatch.sinks.delta import DeltaSink
from tests.sinks.changes import MERGE, Change, Row
from tests.sinks.delta_stages import write_rows
from tests.sinks.stages import batch_of, expect

COLUMNS = {
    "op": "string",
    "id": "long",
    "shop": "string",
    "ts": "long",
    "seq": "integer",
    "note": "string",
    "_deleted": "boolean",
}


@dataclass(frozen=True)
class MergedInDelta:
    """:param given: what the sink has beside its merge, or another one."""

    root: Path
    given: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def sink(self) -> OpenSink:
        return DeltaSink(str(self.root), **{"merge": MERGE, **self.given}).open(SinkContext())

    def write(self, key: BatchKey, epoch: int, changes: Sequence[Change]) -> None:
        rows = [row_of(change) for change in changes]
        write_rows(self.sink, epoch, [rows[::2], rows[1::2]], COLUMNS, batch=batch_of(key))

    def publish(self, id: int, *changes: Change, epoch: int = 1) -> Manifest:
        self.write(BatchKey("live", id), epoch, changes)
        return self.sink.publish(expect(BatchKey("live", id)), epoch)

    def replace(self, id: int, *changes: Change, epoch: int = 2) -> Manifest:
        self.write(BatchKey("live", id), epoch, changes)
        return self.sink.replace(expect(BatchKey("live", id)), epoch)

    def withdraw(self, id: int, *, epoch: int = 1) -> bool:
        return self.sink.withdraw(expect(BatchKey("live", id)), epoch)

    def table(self) -> DeltaTable:
        return DeltaTable(self.root.as_uri())

    def rows(self) -> list[Row]:
        names = ("id", "shop", "ts", "seq", "note")
        return sorted(tuple(row[name] for name in names) for row in self.table().to_pyarrow_table().to_pylist())

    def newest_files(self) -> set[str]:
        return {path.name for path in (self.root / "_microbatch" / "newest").iterdir()}

    def batches_with_changes(self) -> list[str]:
        """Folders of changes, by lane and id."""
        changes = self.root / "_microbatch" / "changes"
        return sorted("/".join(path.relative_to(changes).parts[:2]) for path in changes.glob("*/*/*"))


def row_of(change: Change) -> dict[str, Any]:
    return {
        "op": "D" if change.deleted else "U",
        "id": change.id,
        "shop": change.shop,
        "ts": change.ts,
        "seq": change.seq,
        "note": change.note,
        "_deleted": change.deleted,
    }
