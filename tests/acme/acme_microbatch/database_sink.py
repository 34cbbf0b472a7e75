"""A table in a database: an attempt writes its stage to a folder, and publishing is one transaction."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.exceptions import PublishConflictError, SinkError
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, OpenSink, Sink, SinkContext
from airflow_provider_microbatch.sinks.file import FileSink

_MADE = """
CREATE TABLE IF NOT EXISTS batches (lane TEXT, id INTEGER, epoch INTEGER, manifest TEXT, PRIMARY KEY (lane, id));
CREATE TABLE IF NOT EXISTS rows (lane TEXT, id INTEGER, row TEXT);
CREATE TABLE IF NOT EXISTS replaced (checkpoint TEXT, lane TEXT, id INTEGER, epoch INTEGER, row TEXT, since REAL);
"""
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class DatabaseSink(Sink):
    """Rows as JSON, by batch, in the SQLite file that the connection names as its host.

    :param conn_id: the connection.
    :param stages: the folder that attempts write to.
    """

    conn_id: str
    stages: str

    def open(self, context: SinkContext) -> OpenDatabase:
        return OpenDatabase(self, context)

    def location(self) -> str:
        return f"database {self.conn_id}"

    @property
    def can_withdraw(self) -> bool:
        return True


class OpenDatabase(OpenSink):
    """Published batches stand in ``batches``, and their rows in ``rows``: a reader joins the two, or reads ``rows``
    alone, which no transaction leaves half changed."""

    def __init__(self, sink: DatabaseSink, context: SinkContext) -> None:
        self._sink = sink
        self._connect = context.connect
        self._files = FileSink(sink.stages, format="json")

    @property
    def definition(self) -> DatabaseSink:
        return self._sink

    def check(self) -> None:
        self._connect(self._sink.conn_id)
        self._files.check()

    def stage(self, batch: BatchIdentity, epoch: int) -> Stage:
        return self._files.stage(batch, epoch)

    def manifest(self, batch: BatchIdentity, epoch: int) -> Manifest | None:
        return self._files.manifest(batch, epoch)

    def failure(self, batch: BatchIdentity, epoch: int) -> Mapping[str, Any] | None:
        return self._files.failure(batch, epoch)

    def drop_stage(self, batch: BatchIdentity, epoch: int) -> bool:
        return self._files.drop_stage(batch, epoch)

    def stages(self, checkpoint: str) -> list[tuple[BatchKey, int]]:
        return self._files.stages(checkpoint)

    def fence(self, batch: BatchIdentity, epoch: int, *, by: str) -> None:
        self._files.fence(batch, epoch, by=by)

    def drop_fences(self, checkpoint: str, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        return self._files.drop_fences(checkpoint, older_seconds=older_seconds, dry_run=dry_run)

    def contains(self, batch: ExpectedBatch) -> Manifest | None:
        if not self._file().exists():
            return None
        with self._transaction() as database:
            return self._found(database, batch)

    def batches(self, lane: str, tables: KnownTables) -> list[int]:
        if not self._file().exists():
            return []
        with self._transaction() as database:
            return [int(id) for (id,) in database.execute("SELECT id FROM batches WHERE lane = ? ORDER BY id", [lane])]

    def lanes(self, tables: KnownTables) -> list[str]:
        if not self._file().exists():
            return []
        with self._transaction() as database:
            return [lane for (lane,) in database.execute("SELECT DISTINCT lane FROM batches ORDER BY lane")]

    def publish(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        found = self.contains(batch)
        if found is None:
            # Before the transaction: no other process waits for a slow disk, nor for a process stopped while it reads.
            staged, lines = self._staged(batch, epoch)
            with self._transaction() as database:
                found = self._found(database, batch)
                if found is None:
                    found = self._load(database, batch, staged, lines)
        if found.epoch == epoch:
            self._files.drop_stage(batch.staged, epoch)
        return found

    def replace(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        found = self.contains(batch)
        if found is None or found.epoch < epoch:
            staged, lines = self._staged(batch, epoch)
            with self._transaction() as database:
                found = self._found(database, batch)
                if found is None or found.epoch < epoch:
                    if found is not None:
                        self._take_out(database, batch)
                    found = self._load(database, batch, staged, lines)
        if found.epoch != epoch:
            raise PublishConflictError(f"batch {batch.key} was replaced by attempt {found.epoch} already.")
        self._files.drop_stage(batch.staged, epoch)
        return found

    def withdraw(self, batch: ExpectedBatch, epoch: int) -> bool:
        with self._transaction() as database:
            found = self._found(database, batch)
            if found is None:
                return False
            if found.epoch != epoch:
                raise SinkError(f"batch {batch.key} is attempt {found.epoch}'s, not {epoch}'s. Nothing was taken out.")
            self._take_out(database, batch)
        return True

    def drop_replaced(self, checkpoint: str, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        if not self._file().exists():
            return []
        old = "FROM replaced WHERE checkpoint = ? AND since <= ?"
        with self._transaction() as database:
            asked = (checkpoint, time.time() - older_seconds)
            found = list(database.execute(f"SELECT DISTINCT lane, id, epoch {old}", asked))
            if not dry_run:
                database.execute(f"DELETE {old}", asked)
        return [f"{self.location()} {lane}/{id} attempt {epoch}" for lane, id, epoch in found]

    def _load(
        self, database: sqlite3.Connection, batch: ExpectedBatch, staged: Manifest, lines: Sequence[str]
    ) -> Manifest:
        """Put in the rows that the attempt wrote, with the record of the batch. The primary key decides between two
        transactions, as in any other database; SQLite runs them one after the other anyway."""
        place = (batch.key.lane, batch.key.id)
        database.execute("INSERT INTO batches VALUES (?, ?, ?, ?)", (*place, staged.epoch, _written(staged)))
        database.executemany("INSERT INTO rows VALUES (?, ?, ?)", ((*place, line) for line in lines))
        return staged

    def _staged(self, batch: ExpectedBatch, epoch: int) -> tuple[Manifest, list[str]]:
        """The manifest and the rows that the attempt wrote.

        :raises SinkError: if the attempt has no finished stage.
        """
        staged = self._files.manifest(batch.staged, epoch)
        folder = Path(self._files.stage(batch.staged, epoch).arguments["path"].removeprefix("file://"))
        if staged is None:
            raise SinkError(f"batch {batch.key} attempt {epoch}: there is no finished stage at {folder}.")
        lines = [line for name in staged.files for line in (folder / name).read_text().splitlines()]
        return batch.check_stage(staged, where=str(folder)), lines

    def _take_out(self, database: sqlite3.Connection, batch: ExpectedBatch) -> None:
        place = (batch.key.lane, batch.key.id)
        kept = "SELECT ?, lane, id, epoch, manifest, ? FROM batches WHERE lane = ? AND id = ?"
        database.execute(f"INSERT INTO replaced {kept}", (batch.identity.checkpoint, time.time(), *place))
        for table in ("batches", "rows"):
            database.execute(f"DELETE FROM {table} WHERE lane = ? AND id = ?", place)

    def _found(self, database: sqlite3.Connection, batch: ExpectedBatch) -> Manifest | None:
        asked = "SELECT manifest FROM batches WHERE lane = ? AND id = ?"
        found = database.execute(asked, (batch.key.lane, batch.key.id)).fetchone()
        return None if found is None else batch.check(_read(found[0], batch.key), where=self.location())

    def _file(self) -> Path:
        return Path(self._connect(self._sink.conn_id).host or "")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(self._file(), timeout=_PATIENCE_SECONDS, isolation_level=None)
        try:
            database.executescript(_MADE)
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
            except BaseException:
                database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")
        except sqlite3.Error as error:
            raise SinkError(f"{self.location()}: {error}") from error
        finally:
            database.close()


def _written(manifest: Manifest) -> str:
    identity = manifest.identity.to_dict() if manifest.identity else None
    values = {"epoch": manifest.epoch, "identity": identity, "files": dict(manifest.files)}
    return json.dumps({**values, "result": dict(manifest.result)})


def _read(text: str, key: BatchKey) -> Manifest:
    values = json.loads(text)
    identity = BatchIdentity.from_dict(values["identity"]) if values["identity"] else None
    return Manifest(key=key, **{**values, "identity": identity})
