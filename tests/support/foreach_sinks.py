"""Sinks of a user's own: one that keeps every promise, and some that break one."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from airflow_provider_microbatch.sinks.foreach import ForeachBatch, ForeachSink, StagedRows


@dataclass(frozen=True)
class RowsInSqlite(ForeachSink):
    """Rows as JSON, by batch; a batch is one transaction."""

    database: str

    def write(self, batch: ForeachBatch, rows: StagedRows) -> None:
        with self._transaction() as database:
            self.delete(database, batch)
            self.insert(database, batch, rows)

    def take_out(self, batch: ForeachBatch) -> None:
        with self._transaction() as database:
            self.delete(database, batch)

    def held(self, batch: ForeachBatch) -> list[Mapping[str, Any]]:
        with self._transaction() as database:
            found = database.execute("SELECT row FROM rows WHERE batch = ?", [batch.name])
            return [json.loads(row) for (row,) in found]

    def delete(self, database: sqlite3.Connection, batch: ForeachBatch) -> None:
        database.execute("DELETE FROM rows WHERE batch = ?", [batch.name])

    def insert(self, database: sqlite3.Connection, batch: ForeachBatch, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            database.execute("INSERT INTO rows VALUES (?, ?)", [batch.name, json.dumps(row)])

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(self.database, timeout=60)
        try:
            with database:
                database.execute("CREATE TABLE IF NOT EXISTS rows (batch TEXT, row TEXT)")
                yield database
        finally:
            database.close()


@dataclass(frozen=True)
class HasNoTakeOut(RowsInSqlite):
    """As the base class of all, which can be rewound by hand alone."""

    take_out = ForeachSink.take_out


@dataclass(frozen=True)
class LosesTheAnswer(RowsInSqlite):
    """The target has committed, and the connection is gone before it says so.

    :cvar is_down: whether it cannot be reached then.
    """

    is_down: ClassVar[bool] = False

    def write(self, batch: ForeachBatch, rows: StagedRows) -> None:
        super().write(batch, rows)
        raise ConnectionError("server closed the connection unexpectedly")

    def take_out(self, batch: ForeachBatch) -> None:
        if self.is_down:
            raise ConnectionError("could not connect to server")
        super().take_out(batch)


@dataclass(frozen=True)
class Appends(RowsInSqlite):
    """What was written is written again."""

    def delete(self, database: sqlite3.Connection, batch: ForeachBatch) -> None:
        pass


@dataclass(frozen=True)
class WritesBitByBit(RowsInSqlite):
    """Readers see half a batch."""

    def insert(self, database: sqlite3.Connection, batch: ForeachBatch, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            super().insert(database, batch, [row])
            database.commit()


@dataclass(frozen=True)
class SwallowsErrors(RowsInSqlite):
    """A batch counts as in that is not."""

    def write(self, batch: ForeachBatch, rows: StagedRows) -> None:
        try:
            super().write(batch, rows)
        except Exception as error:
            print(error)


@dataclass(frozen=True)
class ForgetsRows(RowsInSqlite):
    """The last row of a batch is left out."""

    def insert(self, database: sqlite3.Connection, batch: ForeachBatch, rows: Iterable[Mapping[str, Any]]) -> None:
        super().insert(database, batch, list(rows)[:-1])


@dataclass(frozen=True)
class TakesNothingOut(RowsInSqlite):
    """A batch that was taken out is still there."""

    def take_out(self, batch: ForeachBatch) -> None:
        pass


@dataclass(frozen=True)
class KnowsNoCheckpoints(RowsInSqlite):
    """The batch of another checkpoint goes with the one of its number."""

    def write(self, batch: ForeachBatch, rows: StagedRows) -> None:
        super().write(replace(batch, checkpoint=""), rows)

    def take_out(self, batch: ForeachBatch) -> None:
        super().take_out(replace(batch, checkpoint=""))

    def held(self, batch: ForeachBatch) -> list[Mapping[str, Any]]:
        return super().held(replace(batch, checkpoint=""))


@dataclass(frozen=True)
class Typed(RowsInSqlite):
    """Amounts have a column of their type."""

    def held(self, batch: ForeachBatch) -> list[Mapping[str, Any]]:
        return [{"amount": float(row["amount"])} for row in super().held(batch)]
