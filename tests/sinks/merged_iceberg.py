"""An Iceberg table into which the tests' changes are merged."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from airflow_provider_microbatch.sinks.iceberg.log import IcebergLog
from airflow_provider_microbatch.sinks.iceberg.opened import OpenIceberg
from tests.sinks.changes import MERGE
from tests.sinks.merged_table import MergedInFiles, rows_of_others
from tests.support.iceberg_table import opened_in


@dataclass(frozen=True)
class MergedInIceberg(MergedInFiles):
    """The catalog is beside the table's folder, in SQLite."""

    log = IcebergLog
    examples = 10

    @cached_property
    def sink(self) -> OpenIceberg:
        return opened_in(self.root.parent, self.root.name, **{"merge": MERGE, **self.given})

    def of_rows(self) -> OpenIceberg:
        return opened_in(self.root.parent, self.root.name)

    def table(self) -> Table:
        return self.sink._log.catalog.get().load_table(self.sink._log.catalog.table)

    def read(self) -> Any:
        return self.table().scan().to_arrow()

    def files(self) -> set[str]:
        return {task.file.file_path for task in self.table().scan().plan_files()}

    def version(self) -> int:
        return self.table().metadata.last_sequence_number

    def tidy(self) -> None:
        self.table().overwrite(self.read())
        self.table().maintenance.expire_snapshots().older_than(datetime.now(tz=UTC) + timedelta(days=1)).commit()

    def append(self, *rows: dict[str, Any]) -> None:
        theirs, catalog, name = rows_of_others(*rows), self.sink._log.catalog.get(), self.sink._log.catalog.table
        catalog.create_namespace_if_not_exists(name.partition(".")[0])
        location = f"file://{self.root}"
        catalog.create_table_if_not_exists(name, theirs.schema, location=location, properties={"format-version": "2"})
        self.table().append(theirs)

    def change_by_hand(self) -> None:
        now = self.read()
        first = now.filter(pc.equal(now.column("id"), 1))
        notes = pa.array(["by hand"] * first.num_rows, pa.large_string())
        first = first.set_column(first.column_names.index("note"), "note", notes)
        self.table().overwrite(first, overwrite_filter="id = 1")
        self.table().delete("id = 2")
