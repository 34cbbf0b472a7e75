"""A Delta table into which the tests' changes are merged."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from deltalake import DeltaTable, write_deltalake

from airflow_provider_microbatch.sinks import OpenSink, SinkContext
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.delta.log import DeltaLog
from tests.sinks.changes import MERGE
from tests.sinks.delta_world import opened, optimize_and_vacuum
from tests.sinks.merged_table import MergedInFiles, rows_of_others


@dataclass(frozen=True)
class MergedInDelta(MergedInFiles):
    log = DeltaLog
    examples = 50

    @cached_property
    def sink(self) -> OpenSink:
        return DeltaSink(str(self.root), **{"merge": MERGE, **self.given}).open(SinkContext())

    def of_rows(self) -> OpenSink:
        return opened(self.root)

    def table(self) -> DeltaTable:
        return DeltaTable(self.root.as_uri())

    def read(self) -> Any:
        return self.table().to_pyarrow_table()

    def files(self) -> set[str]:
        return set(self.table().file_uris())

    def version(self) -> int:
        return self.table().version()

    def tidy(self) -> None:
        optimize_and_vacuum(self.root)

    def append(self, *rows: dict[str, Any]) -> None:
        write_deltalake(self.root.as_uri(), rows_of_others(*rows), mode="append", schema_mode="merge")

    def change_by_hand(self) -> None:
        self.table().update(predicate="id = 1", updates={"note": "'by hand'"})
        self.table().delete("id = 2")
