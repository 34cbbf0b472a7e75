"""A table of PostgreSQL into which the tests' changes are merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.postgres.open import OpenPostgres
from tests.postgres import database
from tests.postgres.stages import write_lines
from tests.sinks.changes import MERGE, Change, Row
from tests.sinks.stages import batch_of, expect

COLUMNS = {
    "op": "string",
    "id": "bigint",
    "shop": "string",
    "ts": "bigint",
    "seq": "int",
    "note": "string",
    "_deleted": "boolean",
}


def cells_of(change: Change) -> Sequence[str | None]:
    op, deleted = ("D", "true") if change.deleted else ("U", "false")
    return op, str(change.id), change.shop, str(change.ts), str(change.seq), change.note, deleted


@dataclass(frozen=True)
class MergedInPostgres:
    folder: Path
    merge: Merge = MERGE

    @cached_property
    def sink(self) -> OpenPostgres:
        return database.sink_in(self.folder, merge=self.merge)

    @property
    def table(self) -> str:
        return database.table_in(self.folder)

    def write(self, key: BatchKey, epoch: int, changes: Sequence[Change]) -> None:
        write_lines(self.sink, epoch, COLUMNS, [cells_of(one) for one in changes], batch=batch_of(key), files=2)

    def publish(self, id: int, *changes: Change) -> None:
        self.write(BatchKey("live", id), 1, changes)
        self.sink.publish(expect(BatchKey("live", id)), 1)

    def rows(self) -> list[Row]:
        if self.merge.scd_type == 1:
            return database.rows(self.table, "id, shop, ts, seq, note", 'id, shop COLLATE "C"')
        shown = f'id, shop, note, "{self.merge.valid_from}", "{self.merge.valid_to}"'
        return database.rows(self.table, shown, f'id, shop COLLATE "C", "{self.merge.valid_from}"')
