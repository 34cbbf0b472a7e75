"""A schema's own records of its tables. If two transactions would both publish a batch, the primary key of
``microbatch_batches`` decides: the second waits for the first, and learns which one won.

A stage that was dropped is never published, however late its loader wakes up: dropping marks its row in
``microbatch_stages``, and a publish locks that row, and checks that it is not marked, before it takes the stage's rows.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import is_table_id
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.manifest import Manifest
from airflow_provider_microbatch.sinks.postgres.database import Row, execute
from airflow_provider_microbatch.sinks.postgres.names import (
    BATCHES,
    KEPT,
    REPLACED,
    STAGE,
    STAGES,
    TABLES,
    TableName,
    quoted,
)

if TYPE_CHECKING:
    import psycopg

_MADE = (
    f"""CREATE TABLE IF NOT EXISTS {{schema}}.{BATCHES} (
        table_name text NOT NULL, lane text NOT NULL, id bigint NOT NULL, epoch bigint NOT NULL,
        checkpoint text NOT NULL, pipeline text NOT NULL, digest text NOT NULL, rows bigint NOT NULL,
        published_at timestamptz NOT NULL DEFAULT now(), manifest json NOT NULL,
        PRIMARY KEY (table_name, lane, id))""",
    f"""CREATE TABLE IF NOT EXISTS {{schema}}.{STAGES} (
        stage text PRIMARY KEY, table_name text NOT NULL, checkpoint text NOT NULL, lane text NOT NULL,
        id bigint NOT NULL, epoch bigint NOT NULL, made_at timestamptz NOT NULL DEFAULT now(),
        dropped boolean NOT NULL DEFAULT false)""",
    f"""CREATE TABLE IF NOT EXISTS {{schema}}.{REPLACED} (
        kept text PRIMARY KEY, table_name text NOT NULL, kept_by text NOT NULL, lane text NOT NULL, id bigint NOT NULL,
        epoch bigint NOT NULL, checkpoint text NOT NULL, digest text NOT NULL, withdrawn boolean NOT NULL,
        since timestamptz NOT NULL DEFAULT clock_timestamp())""",
    f"CREATE TABLE IF NOT EXISTS {{schema}}.{TABLES} (table_name text PRIMARY KEY, id text NOT NULL)",
)
_LOCK = 0x6D6963726F626174
"""Lock for making tables: two sessions that make the same table at once would fail, even with IF NOT EXISTS."""


@dataclass(frozen=True, kw_only=True)
class Replaced:
    """Rows that were replaced or withdrawn.

    :param kept: the table that keeps them.
    """

    kept: TableName
    key: BatchKey
    epoch: int


class Records:
    """The records of one table, within a transaction.

    :param table: the table.
    """

    def __init__(self, connection: psycopg.Connection[Row], table: TableName) -> None:
        self._connection = connection
        self._table = table
        self._batches, self._stages, self._replaced = (table.sibling(one).sql for one in (BATCHES, STAGES, REPLACED))
        self._tables = table.sibling(TABLES).sql

    def are_there(self) -> bool:
        """Whether the schema has the tables of records; those of before ids lack the last one."""
        return self._has(REPLACED)

    def make(self) -> None:
        """Make the missing tables of records. Until the transaction ends, no other makes tables of this package."""
        execute(self._connection, "SELECT pg_advisory_xact_lock(%s)", _LOCK)
        if not self._has(TABLES):
            for statement in _MADE:
                execute(self._connection, statement.format(schema=quoted(self._table.schema)))

    def id(self) -> str | None:
        """The table's id; None if it was given none."""
        if not self._has(TABLES):
            return None
        asked = f"SELECT id FROM {self._tables} WHERE table_name = %s"
        found = execute(self._connection, asked, self._table.table).fetchone()
        return str(found[0]) if found is not None and is_table_id(found[0]) else None

    def give_id(self) -> str | None:
        """The table's id, which it is given now if it has none; called after :meth:`make`."""
        if (found := self.id()) is not None:
            return found
        given = f"INSERT INTO {self._tables} (table_name, id) VALUES (%s, %s) ON CONFLICT DO NOTHING"
        execute(self._connection, given, self._table.table, uuid.uuid4().hex)
        return self.id()

    def find(self, key: BatchKey, *, lock: bool = False) -> Manifest | None:
        """The manifest published at a batch's place; None if there is none.

        :param lock: prevent changes by others until the transaction ends.
        """
        found = execute(
            self._connection,
            f"SELECT manifest::text FROM {self._batches} WHERE table_name = %s AND lane = %s AND id = %s"
            + (" FOR UPDATE" if lock else ""),
            *self._place(key),
        ).fetchone()
        return None if found is None else _read(found[0], key, self._table)

    def add(self, manifest: Manifest) -> bool:
        """Take the batch's place, after waiting for a transaction that is taking it.

        :return: False if the place is taken.
        """
        added = execute(
            self._connection,
            f"INSERT INTO {self._batches} (table_name, lane, id, epoch, checkpoint, pipeline, digest, rows, manifest) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            *self._place(manifest.key),
            manifest.epoch,
            *_whose(manifest),
            0,
            _written(manifest),
        )
        return added.rowcount == 1

    def change(self, manifest: Manifest) -> None:
        """Give the batch's place to that attempt. A transaction that waits for the row finds the new attempt."""
        execute(
            self._connection,
            f"UPDATE {self._batches} SET epoch = %s, checkpoint = %s, pipeline = %s, digest = %s, rows = 0, "
            "manifest = %s, published_at = now() WHERE table_name = %s AND lane = %s AND id = %s",
            manifest.epoch,
            *_whose(manifest),
            _written(manifest),
            *self._place(manifest.key),
        )

    def count(self, key: BatchKey, rows: int) -> None:
        """Record how many rows the batch brought."""
        execute(
            self._connection,
            f"UPDATE {self._batches} SET rows = %s WHERE table_name = %s AND lane = %s AND id = %s",
            rows,
            *self._place(key),
        )

    def rows(self, key: BatchKey) -> int:
        """How many rows the batch brought; 0 if it is not in."""
        found = execute(
            self._connection,
            f"SELECT rows FROM {self._batches} WHERE table_name = %s AND lane = %s AND id = %s",
            *self._place(key),
        ).fetchone()
        return 0 if found is None else int(found[0])

    def remove(self, key: BatchKey) -> None:
        """Free the batch's place."""
        execute(
            self._connection,
            f"DELETE FROM {self._batches} WHERE table_name = %s AND lane = %s AND id = %s",
            *self._place(key),
        )

    def have_rows(self) -> bool:
        """Whether a batch has brought rows that are in."""
        found = execute(
            self._connection,
            f"SELECT 1 FROM {self._batches} WHERE table_name = %s AND rows > 0 LIMIT 1",
            self._table.table,
        )
        return found.fetchone() is not None

    def ids(self, lane: str, *, after: int = -1) -> list[int]:
        """Ids under which batches of the lane are published, ascending.

        :param after: ids up to this one are not asked for.
        """
        found = execute(
            self._connection,
            f"SELECT id FROM {self._batches} WHERE table_name = %s AND lane = %s AND id > %s ORDER BY id",
            self._table.table,
            lane,
            after,
        )
        return [int(id) for (id,) in found]

    def lanes(self) -> list[str]:
        """Lanes of which batches are published, ascending. Each is one step down the primary key: DISTINCT would read
        all batches at each plan."""
        next_lane = f"SELECT lane FROM {self._batches} WHERE table_name = %s"
        found = execute(
            self._connection,
            f"WITH RECURSIVE lanes (lane) AS (({next_lane} ORDER BY lane LIMIT 1) UNION ALL SELECT "
            f"({next_lane} AND lane > lanes.lane ORDER BY lane LIMIT 1) FROM lanes WHERE lanes.lane IS NOT NULL) "
            "SELECT lane FROM lanes WHERE lane IS NOT NULL",
            self._table.table,
            self._table.table,
        )
        return [str(lane) for (lane,) in found]

    def add_stage(self, stage: TableName, batch: BatchIdentity, epoch: int) -> None:
        """Record a stage table that is made for the attempt."""
        execute(
            self._connection,
            f"INSERT INTO {self._stages} (stage, table_name, checkpoint, lane, id, epoch) "
            "VALUES (%s, %s, %s, %s, %s, %s)",
            stage.table,
            self._table.table,
            batch.checkpoint,
            batch.key.lane,
            batch.key.id,
            epoch,
        )

    def hold_stage(self, stage: TableName) -> bool:
        """Make sure that the stage is not dropped before the transaction ends. False if it is dropped already."""
        held = execute(
            self._connection, f"SELECT 1 FROM {self._stages} WHERE stage = %s AND NOT dropped FOR UPDATE", stage.table
        )
        return held.fetchone() is not None

    def has_row(self, stage: TableName) -> bool:
        """Whether a stage table has any row."""
        return execute(self._connection, f"SELECT 1 FROM {stage.sql} LIMIT 1").fetchone() is not None

    def mark_dropped(self, batch: BatchIdentity, epoch: int) -> list[TableName]:
        """Mark the attempt's stage tables as dropped, so that none is published from now on; return the tables."""
        found = execute(
            self._connection,
            f"UPDATE {self._stages} SET dropped = true "
            "WHERE table_name = %s AND checkpoint = %s AND lane = %s AND id = %s AND epoch = %s RETURNING stage",
            self._table.table,
            batch.checkpoint,
            batch.key.lane,
            batch.key.id,
            epoch,
        )
        return [self._table.made(name, STAGE) for (name,) in found]

    def drop_stage(self, stage: TableName) -> None:
        """Drop a stage table and its record."""
        execute(self._connection, f"DROP TABLE IF EXISTS {stage.sql}")
        execute(self._connection, f"DELETE FROM {self._stages} WHERE stage = %s", stage.table)

    def stages(self, checkpoint: str) -> set[tuple[BatchKey, int]]:
        """Attempts of a checkpoint that have stage tables."""
        found = execute(
            self._connection,
            f"SELECT DISTINCT lane, id, epoch FROM {self._stages} WHERE table_name = %s AND checkpoint = %s",
            self._table.table,
            checkpoint,
        )
        return {(BatchKey(lane, int(id)), int(epoch)) for lane, id, epoch in found}

    def add_replaced(self, kept: TableName, found: Manifest, *, kept_by: str, withdrawn: bool) -> None:
        """Record that rows of a batch were replaced or withdrawn.

        :param kept_by: id of the checkpoint whose janitor drops the rows.
        """
        checkpoint, _, digest = _whose(found)
        execute(
            self._connection,
            f"INSERT INTO {self._replaced} (kept, table_name, lane, id, epoch, kept_by, checkpoint, digest, withdrawn) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
            kept.table,
            *self._place(found.key),
            found.epoch,
            kept_by,
            checkpoint,
            digest,
            withdrawn,
        )

    def was_withdrawn(self, batch: BatchIdentity, epoch: int) -> bool:
        """Whether output of this plan of the batch, from that attempt or a later one, was withdrawn."""
        found = execute(
            self._connection,
            f"SELECT 1 FROM {self._replaced} WHERE table_name = %s AND lane = %s AND id = %s AND withdrawn "
            "AND checkpoint = %s AND digest = %s AND epoch >= %s LIMIT 1",
            *self._place(batch.key),
            batch.checkpoint,
            batch.digest,
            epoch,
        )
        return found.fetchone() is not None

    def replaced(self, checkpoint: str, *, older_seconds: float) -> list[Replaced]:
        """Rows that were replaced or withdrawn at least ``older_seconds`` ago, by the server's clock."""
        found = execute(
            self._connection,
            f"SELECT kept, lane, id, epoch FROM {self._replaced} WHERE table_name = %s AND kept_by = %s "
            "AND since <= clock_timestamp() - make_interval(secs => %s) ORDER BY since, kept",
            self._table.table,
            checkpoint,
            float(older_seconds),
        )
        return [
            Replaced(kept=self._table.made(kept, KEPT), key=BatchKey(lane, int(id)), epoch=int(epoch))
            for kept, lane, id, epoch in found
        ]

    def drop_replaced(self, replaced: Replaced) -> None:
        """Drop the table that keeps the rows, and its record."""
        execute(self._connection, f"DROP TABLE IF EXISTS {replaced.kept.sql}")
        execute(self._connection, f"DELETE FROM {self._replaced} WHERE kept = %s", replaced.kept.table)

    def _has(self, table: str) -> bool:
        found = execute(self._connection, "SELECT to_regclass(%s) IS NOT NULL", self._table.sibling(table).text)
        return bool(found.fetchone() == (True,))

    def _place(self, key: BatchKey) -> tuple[str, str, int]:
        return self._table.table, key.lane, key.id


def _whose(manifest: Manifest) -> tuple[str, str, str]:
    identity = manifest.identity
    return ("", "", "") if identity is None else (identity.checkpoint, identity.pipeline, identity.digest)


def _written(manifest: Manifest) -> str:
    # In ASCII, which every encoding of a database contains.
    return json.dumps(
        {
            "epoch": manifest.epoch,
            "identity": manifest.identity.to_dict() if manifest.identity else None,
            "files": dict(manifest.files),
            "result": dict(manifest.result),
        }
    )


def _read(text: str, key: BatchKey, table: TableName) -> Manifest:
    try:
        values = json.loads(text)
        identity = BatchIdentity.from_dict(values["identity"]) if values["identity"] else None
        found = Manifest(
            key=key, epoch=int(values["epoch"]), identity=identity, files=values["files"], result=values["result"]
        )
        if identity is not None and identity.key != key:
            raise ValueError(f"it is batch {identity.key}'s")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SinkError(
            f"the manifest of batch {key} of {table} in {table.sibling(BATCHES)} is none of this package's ({error}). "
            "Somebody changed it; nothing was done."
        ) from error
    return found
