"""A Delta table into which the tests' changes are merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks import Manifest, OpenSink, SinkContext
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.delta.merged.in_bucket import ObjectNewest
from airflow_provider_microbatch.sinks.delta.merged.newest import FolderNewest, NewestRecords
from airflow_provider_microbatch.stores.object_store import ObjectStore
from tests.sinks.changes import MERGE, Change, Row
from tests.sinks.delta_stages import write_rows
from tests.sinks.stages import batch_of, expect
from tests.support import object_store

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
    """:param root: the table's folder; of one in a bucket, whose key it is.
    :param given: what the sink has beside its merge, or another one.
    """

    name: ClassVar[str] = "my customers"
    """That of its folder in the tests."""

    root: Path
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """As the sink is told it."""
        return str(self.root)

    @property
    def uri(self) -> str:
        """As delta-rs is told it."""
        return self.root.as_uri()

    @property
    def options(self) -> dict[str, str] | None:
        """Another writer's."""
        return None

    @property
    def newest(self) -> NewestRecords:
        return FolderNewest(self.root)

    @cached_property
    def sink(self) -> OpenSink:
        return DeltaSink(self.path, **{"merge": MERGE, **self.given}).open(SinkContext())

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
        return DeltaTable(self.uri, storage_options=self.options)

    def append(self, *rows: dict[str, Any]) -> None:
        """As another writer does."""
        kinds = {"id": pa.int64(), "shop": pa.string(), "ts": pa.int64(), "seq": pa.int32(), "note": pa.string()}
        theirs = pa.Table.from_pylist([{"shop": "a", "seq": 1, **row} for row in rows], schema=pa.schema(kinds))
        write_deltalake(self.uri, theirs, mode="append", schema_mode="merge", storage_options=self.options)

    def optimize_and_vacuum(self) -> None:
        self.table().optimize.compact()
        self.table().vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)

    def rows(self) -> list[Row]:
        names = ("id", "shop", "ts", "seq", "note")
        return sorted(tuple(row[name] for name in names) for row in self.table().to_pyarrow_table().to_pylist())

    def files(self, below: str) -> list[str]:
        """Those below a folder of the table, relative to the table's."""
        found = [path.relative_to(self.root).as_posix() for path in (self.root / below).rglob("*") if path.is_file()]
        return sorted(found)

    def read(self, file: str) -> bytes:
        return (self.root / file).read_bytes()

    def put(self, file: str, data: bytes) -> None:
        (self.root / file).write_bytes(data)

    def remove(self, file: str) -> None:
        (self.root / file).unlink()

    def newest_files(self) -> set[str]:
        return {file.rpartition("/")[2] for file in self.files("_microbatch/newest")}

    def batches_with_changes(self) -> list[str]:
        """Lane and id of each attempt whose changes are there."""
        attempts = {tuple(file.split("/")[2:5]) for file in self.files("_microbatch/changes")}
        return sorted("/".join(found[:2]) for found in attempts)


class MergedInBucket(MergedInDelta):
    """The same in the tests' own bucket."""

    name = "customers"

    @property
    def path(self) -> str:
        return object_store.address(self.root)

    @property
    def uri(self) -> str:
        return self.path

    @property
    def options(self) -> dict[str, str] | None:
        return {"aws_conditional_put": "etag"}

    @property
    def newest(self) -> NewestRecords:
        return ObjectNewest(ObjectStore.at(f"{self.path}/_microbatch/newest"))

    def files(self, below: str) -> list[str]:
        return [f"{below}/{key}" for key in object_store.keys(self.root / below)]

    def read(self, file: str) -> bytes:
        data: bytes = object_store.client().get_object(**self._object(file))["Body"].read()
        return data

    def put(self, file: str, data: bytes) -> None:
        object_store.client().put_object(**self._object(file), Body=data)

    def remove(self, file: str) -> None:
        object_store.client().delete_object(**self._object(file))

    def _object(self, file: str) -> dict[str, str]:
        return {"Bucket": object_store.BUCKET, "Key": f"{str(self.root).strip('/')}/{file}"}


IN_BUCKET = pytest.param(MergedInBucket, id="bucket", marks=pytest.mark.slow)

anywhere = pytest.mark.parametrize("table", [pytest.param(MergedInDelta, id="folder"), IN_BUCKET], indirect=True)
"""For tests of what the place of the table may decide."""

in_bucket = pytest.mark.parametrize("table", [IN_BUCKET], indirect=True)


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
