"""A Delta table into which the tests' changes are merged."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from deltalake import DeltaTable, write_deltalake

from airflow_provider_microbatch.sinks import OpenSink, SinkContext
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.delta.log import DeltaLog
from airflow_provider_microbatch.sinks.delta.merged.in_bucket import ObjectNewest
from airflow_provider_microbatch.sinks.merged.newest import NewestRecords
from airflow_provider_microbatch.stores.object_store import ObjectStore
from tests.sinks.changes import MERGE
from tests.sinks.merged_table import MergedInFiles, rows_of_others
from tests.support import object_store


@dataclass(frozen=True)
class MergedInDelta(MergedInFiles):
    log = DeltaLog
    examples = 50

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

    @cached_property
    def sink(self) -> OpenSink:
        return DeltaSink(self.path, **{"merge": MERGE, **self.given}).open(SinkContext())

    def of_rows(self) -> OpenSink:
        return DeltaSink(self.path).open(SinkContext())

    def table(self) -> DeltaTable:
        return DeltaTable(self.uri, storage_options=self.options)

    def read(self) -> Any:
        return self.table().to_pyarrow_table()

    def files(self) -> set[str]:
        return set(self.table().file_uris())

    def version(self) -> int:
        return self.table().version()

    def tidy(self) -> None:
        self.table().optimize.compact()
        self.table().vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)

    def append(self, *rows: dict[str, Any]) -> None:
        theirs = rows_of_others(*rows)
        write_deltalake(self.uri, theirs, mode="append", schema_mode="merge", storage_options=self.options)

    def change_by_hand(self) -> None:
        self.table().update(predicate="id = 1", updates={"note": "'by hand'"})
        self.table().delete("id = 2")


class MergedInBucket(MergedInDelta):
    """The same in the tests' own bucket, where the root is the table's key."""

    name = "customers"
    examples = 6

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

    def stored(self, below: str) -> list[str]:
        return [f"{below}/{key}" for key in object_store.keys(self.root / below)]

    def get(self, file: str) -> bytes:
        data: bytes = object_store.client().get_object(**self._object(file))["Body"].read()
        return data

    def put(self, file: str, data: bytes) -> None:
        object_store.client().put_object(**self._object(file), Body=data)

    def remove(self, file: str) -> None:
        object_store.client().delete_object(**self._object(file))

    def _object(self, file: str) -> dict[str, str]:
        return {"Bucket": object_store.BUCKET, "Key": f"{str(self.root).strip('/')}/{file}"}
