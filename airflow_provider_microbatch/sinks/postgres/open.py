"""The sink in its surroundings: stages in a folder, stage tables, and the transactions that publish."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.exceptions import AttemptFencedError, PublishConflictError, SinkError
from airflow_provider_microbatch.runtime.intake import Intake
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.settings import make_private_folder
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, Sink, SinkContext
from airflow_provider_microbatch.sinks.dropped import TellsDropped
from airflow_provider_microbatch.sinks.file import STAGING
from airflow_provider_microbatch.sinks.file.posix import check_no_link, make_folders
from airflow_provider_microbatch.sinks.file.report import check_files, read_schema
from airflow_provider_microbatch.sinks.postgres.columns import (
    OWN,
    Column,
    as_written,
    check_table,
    columns_of,
    made_of,
    make_table,
    of_stage,
)
from airflow_provider_microbatch.sinks.postgres.database import Database, Row, execute
from airflow_provider_microbatch.sinks.postgres.intake import intake_of
from airflow_provider_microbatch.sinks.postgres.kin import Kin, of_unseen
from airflow_provider_microbatch.sinks.postgres.known_merge import check_merge
from airflow_provider_microbatch.sinks.postgres.load import Loaded, Staged, load
from airflow_provider_microbatch.sinks.postgres.names import BATCHES, STAGE, TABLES, TableName
from airflow_provider_microbatch.sinks.postgres.records import Records
from airflow_provider_microbatch.sinks.postgres.rows import Appended, Merged, Rows
from airflow_provider_microbatch.sinks.postgres.types import StagedColumn
from airflow_provider_microbatch.sinks.postgres.versions import Versioned
from airflow_provider_microbatch.sinks.staged_in_files import StagedInFiles
from airflow_provider_microbatch.sinks.table_folder import check_writable

if TYPE_CHECKING:
    import psycopg

    from airflow_provider_microbatch.sinks.postgres import PostgresSink

    Connection = psycopg.Connection[Row]

log = logging.getLogger(__name__)

_DROP_SECONDS = 5.0
"""How long to wait for a dropped stage table that another process is still loading."""
_LOADS = 5
"""How often to reload a stage that the server has lost."""
_CHANGES_GONE = (
    "What came before could not be held against what comes now. Nothing was changed. Bring them back from a backup; "
    "without one, empty the table and have microbatch rewind --to -1 --drop-output run all batches again."
)


class _StageLostError(SinkError):
    """A stage table that was loaded is empty: it is UNLOGGED, and the server empties such tables during recovery."""


class OpenPostgres(StagedInFiles, TellsDropped):
    """The operations of a table of PostgreSQL; see :mod:`airflow_provider_microbatch.sinks.postgres`."""

    def __init__(self, sink: PostgresSink, context: SinkContext) -> None:
        self._sink = sink
        self._files = sink.files
        self._database = Database(sink, context.connect)

    @property
    def definition(self) -> PostgresSink:
        return self._sink

    def check(self) -> None:
        check_writable(self._files.root)  # the stages' folder is no table
        self._database.run(f"look at {self._sink.name}", self._check)

    def known_as(self) -> list[str]:
        def look(connection: Connection) -> list[str]:
            # Of two servers one of which is made of the other's backup, system identifier and object ids are the same.
            # As a number: how a time is written is the session's.
            told = execute(
                connection,
                "SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text, oid::text "
                "FROM pg_database WHERE datname = current_database()",
            ).fetchone()
            names = (self._sink.name, *Kin(connection, self._sink.name).names())
            return [" ".join((*(told or ()), name.sql)) for name in names]

        return self._database.run(f"look where {self._sink.name} is", look)

    def make_ready(self, tables: KnownTables, *, is_there: Any) -> None:
        root = self._files.root
        try:
            make_folders(root)
            check_no_link(root, root / STAGING)
            make_private_folder(root / STAGING)
        except OSError as error:
            raise SinkError(f"no stage can be written below {root}: {error}.") from error
        if (table_id := self._database.run(f"make {self._sink.name} ready", self._make_ready)) is not None:
            tables.put_at(self.location(), table_id)

    def is_table_of(self, before: Sink, tables: KnownTables) -> bool:
        """By the id that a backup of the database has, too, whichever connection leads to it."""
        from airflow_provider_microbatch.sinks.postgres import PostgresSink

        return isinstance(before, PostgresSink) and self._id is not None and tables.was_at(before.location(), self._id)

    def stage(self, batch: BatchIdentity, epoch: int) -> Stage:
        stage, merge = self._files.stage(batch, epoch), self._sink.merge
        bounds = () if merge is None else merge.bounds
        return dataclasses.replace(
            stage,
            writer="airflow_provider_microbatch.runtime.copy_lines:write",
            arguments={
                "path": stage.arguments["path"],
                "remove_nul": self._sink.nul_characters == "remove",
                "columns": list(self._sink.columns),
                "needed": [] if merge is None else list(dict.fromkeys((*merge.keys, *merge.sequence_by))),
                "delete_when": None if merge is None else merge.delete_when,
            },
            reserved_columns=(*OWN, "_deleted", *bounds),
        )

    def intake(self) -> Intake | None:
        return self._database.run(f"look at {self._sink.name}", self._intake)

    def manifest(self, batch: BatchIdentity, epoch: int) -> Manifest | None:
        return self._files.manifest(batch, epoch)

    def contains(self, batch: ExpectedBatch) -> Manifest | None:
        def look(connection: Connection) -> Manifest | None:
            records = self._records(connection)
            found = records.find(batch.key) if records.are_there() else None
            if found is None:
                self._rows(connection).check_alone(batch.identity)
            return None if found is None else batch.check(found, where=self.location())

        return self._database.run(f"look for batch {batch.key}", look)

    def batches(self, lane: str, tables: KnownTables) -> list[int]:
        return self.batches_after(lane, -1, tables)

    def batches_after(self, lane: str, number: int, tables: KnownTables) -> list[int]:
        def look(connection: Connection) -> list[int]:
            records = self._records(connection)
            return records.ids(lane, after=number) if records.are_there() else []

        return self._database.run(f"list the batches of lane {lane}", look)

    def lanes(self, tables: KnownTables) -> list[str]:
        def look(connection: Connection) -> list[str]:
            records = self._records(connection)
            return records.lanes() if records.are_there() else []

        return self._database.run("list the lanes", look)

    def damage(self, batch: ExpectedBatch, found: Manifest) -> str | None:
        def look(connection: Connection) -> str | None:
            rows, published = self._rows(connection), self._records(connection).rows(batch.key)
            there = rows.count(batch.key) if published else 0
            if there is None:
                return f"{rows.place} is gone"
            if there != published:
                return f"{rows.place} has {there:,} of its {published:,} rows"
            return rows.astray(batch.key) if published else None

        return self._database.run(f"count batch {batch.key}", look)

    def check_whole(self) -> None:
        self._database.run(f"look how {self._sink.name} is merged", self._check_merge)

    def was_dropped(self) -> bool:
        return self._database.run(f"look for {self._sink.name}", lambda one: not columns_of(one, self._sink.name))

    def unrecorded(self, batch: ExpectedBatch, wrote: Sequence[Sink]) -> str | None:
        def look(connection: Connection) -> str | None:
            records, rows = self._records(connection), self._rows(connection)
            if not records.are_there() or records.find(batch.key) is not None:
                return None
            # Else another pipeline's rows would be told as this batch's, with the DELETE that removes them.
            return rows.unrecorded(batch.key, unseen=rows.check_alone(batch.identity))

        return self._database.run(f"count batch {batch.key}", look)

    def publish(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        return self._bring_in(batch, epoch, replay=False)

    def replace(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        found = self._bring_in(batch, epoch, replay=True)
        if found.epoch != epoch:
            raise PublishConflictError(
                f"batch {batch.key}: attempt {found.epoch} is published, which is later than attempt {epoch}. "
                "Nothing was replaced."
            )
        return found

    def withdraw(self, batch: ExpectedBatch, epoch: int) -> bool:
        def take_out(connection: Connection) -> bool:
            records, rows = self._records(connection), self._rows(connection)
            if not records.are_there():
                return False
            self._check_merge(connection)
            rows.begin(batch.key)
            found = records.find(batch.key, lock=True)
            if found is None:
                return False
            if batch.check(found, where=self.location()).epoch != epoch:
                raise SinkError(
                    f"batch {batch.key} of {self.location()} is attempt {found.epoch}'s, not {epoch}'s: replaced "
                    "meanwhile. Nothing was taken out; run the command again."
                )
            kept = self._put_out(records, rows, batch, found, withdrawn=True)
            records.remove(batch.key)
            rows.follow([kept] if kept is not None else [])
            return True

        return self._database.run(f"take out batch {batch.key}", take_out)

    def drop_stage(self, batch: BatchIdentity, epoch: int) -> bool:
        marked = self._database.run(
            f"drop a stage of batch {batch.key}", lambda connection: self._mark_dropped(connection, batch, epoch)
        )
        for stage in marked:
            # A process that still loads the table holds it. The table is never published; after the error the next call
            # drops it.
            self._database.run(
                f"drop the stage table {stage.table} of batch {batch.key} attempt {epoch}, which is being loaded",
                lambda connection, stage=stage: self._records(connection).drop_stage(stage),  # type: ignore[misc]
                lock_seconds=min(_DROP_SECONDS, self._sink.lock_seconds),
            )
        return self._files.drop_stage(batch, epoch) or bool(marked)

    def drop_replaced(self, checkpoint: str, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        def look(connection: Connection) -> list[Any]:
            records = self._records(connection)
            return records.replaced(checkpoint, older_seconds=older_seconds) if records.are_there() else []

        found = self._database.run("list what was replaced", look)
        for one in () if dry_run else found:
            self._database.run(
                f"drop what was replaced of batch {one.key}",
                lambda connection, one=one: self._records(connection).drop_replaced(one),  # type: ignore[misc]
            )
        return [f"{self.location()} {one.key} attempt {one.epoch}: {one.kept}" for one in found]

    def stages(self, checkpoint: str) -> list[tuple[BatchKey, int]]:
        def look(connection: Connection) -> set[tuple[BatchKey, int]]:
            records = self._records(connection)
            return records.stages(checkpoint) if records.are_there() else set()

        return sorted({*self._files.stages(checkpoint), *self._database.run("list the stage tables", look)})

    def _bring_in(self, batch: ExpectedBatch, epoch: int, *, replay: bool) -> Manifest:
        found = self.contains(batch)
        if found is None or (replay and found.epoch < epoch):
            found = self._load_and_publish(batch, self._staged(batch, epoch), replay=replay)
        if found.epoch == epoch:
            self.drop_stage(batch.staged, epoch)
        return found

    def _load_and_publish(self, batch: ExpectedBatch, staged: Staged, *, replay: bool) -> Manifest:
        def attempt() -> Manifest:
            loaded = self._load(batch, staged)
            return self._database.run(
                f"{'replace' if replay else 'publish'} batch {batch.key}",
                lambda connection: self._publish(connection, batch, staged, loaded, replay=replay),
            )

        for _ in range(_LOADS):
            try:
                return attempt()
            except _StageLostError as error:
                log.warning("%s It is loaded again.", error)
        return attempt()

    def _publish(
        self, connection: Connection, batch: ExpectedBatch, staged: Staged, loaded: Loaded, *, replay: bool
    ) -> Manifest:
        """Publish the whole batch or nothing. When run again after a commit without an answer, it finds that commit: to
        take the batch's place, it waits for a transaction that is taking it."""
        records, rows, own = self._records(connection), self._rows(connection), staged.manifest
        rows.begin(batch.key)
        touched = []
        if not records.add(own):
            found = records.find(batch.key, lock=True)
            if found is None:
                raise SinkError(f"batch {batch.key} came and went while it was published. Run the batch again.")
            known = batch.check(found, where=self.location())
            if not replay or known.epoch >= own.epoch:
                return known
            touched.append(self._put_out(records, rows, batch, found, withdrawn=False))
            records.change(own)
        else:
            if (left := rows.unrecorded(batch.key, unseen=rows.check_alone(batch.identity))) is not None:
                raise SinkError(f"{left} Nothing was published.")
        if records.was_withdrawn(batch.identity, own.epoch):
            raise AttemptFencedError(
                f"batch {batch.key} was taken out of {self.location()} while attempt {own.epoch} was about to publish. "
                "Nothing was published."
            )
        if loaded.columns is not None:
            if not records.hold_stage(loaded.table):
                raise AttemptFencedError(
                    f"the stage of batch {batch.key} attempt {own.epoch} was dropped while it was loaded: another has "
                    "taken its place. Nothing was published."
                )
            # If the server has emptied the stage table, the batch would be published without its rows.
            if loaded.rows and not records.has_row(loaded.table):
                raise _StageLostError(
                    f"the stage table of batch {batch.key} attempt {own.epoch} has lost its {loaded.rows:,} rows: the "
                    "server has recovered from a crash, or a standby has taken its place. Nothing was published."
                )
            records.count(batch.key, rows.put_in(batch.key, loaded.table, loaded.columns, staged=loaded.rows))
            touched.append(loaded.table)
        rows.follow([table for table in touched if table is not None])
        if loaded.columns is not None:
            records.drop_stage(loaded.table)
        return own

    def _put_out(
        self, records: Records, rows: Rows, batch: ExpectedBatch, found: Manifest, *, withdrawn: bool
    ) -> TableName | None:
        had = records.rows(batch.key)
        unseen = rows.check_alone(batch.identity, had=had)
        there = 0 if unseen is None else rows.count(batch.key) or 0
        if unseen is not None and there > had:
            raise SinkError(
                f"{rows.place} has {there:,} rows of batch {batch.key}, which brought {had:,}: {of_unseen(unseen)}. "
                "Nothing was published or taken out."
            )
        out = rows.take_out(batch.key)
        kept, moved = (None, 0) if out is None else out
        if moved < had and not withdrawn:
            if isinstance(rows, Merged):
                # Rebuilt from the remaining changes, the table would go back to older states of these keys.
                raise SinkError(
                    f"{rows.place} has {moved:,} of the {had:,} changes of batch {batch.key}: somebody has deleted the "
                    f"others. {_CHANGES_GONE}"
                )
            log.warning(
                "batch %s of %s had %s rows when it was published, and has %s now: somebody has deleted the others. "
                "The replay brings them back.", batch.key, self._sink.name, had, moved,
            )  # fmt: skip
        if kept is not None:
            records.add_replaced(kept, found, kept_by=batch.identity.checkpoint, withdrawn=withdrawn)
        return kept

    def _staged(self, batch: ExpectedBatch, epoch: int) -> Staged:
        folder = Path(self._files.stage(batch.staged, epoch).arguments["path"].removeprefix("file://"))
        manifest = self._files.manifest(batch.staged, epoch)
        if manifest is None:
            raise SinkError(
                f"batch {batch.key} attempt {epoch} has no complete stage at {folder}. Run the batch again."
            )
        batch.check_stage(manifest, where=str(folder))
        check_files(folder, manifest)
        schema = read_schema(folder)
        if schema is None and manifest.files:
            raise SinkError(f"the stage {folder} does not say which columns it has. Run the batch again.")
        columns = None if schema is None else [StagedColumn(name=name, type=type) for name, type in schema["columns"]]
        return Staged(manifest=manifest, files=[folder / name for name in manifest.files], columns=columns)

    def _load(self, batch: ExpectedBatch, staged: Staged) -> Loaded:
        """Load the attempt's rows into a stage table. The table exists and is on record before its first row, so that a
        process that is killed here leaves nothing that is not found."""
        columns, epoch = staged.columns, staged.manifest.epoch
        if columns is None:
            self._database.run(f"publish batch {batch.key}", lambda connection: self._records(connection).make())
            return Loaded(table=self._sink.name, columns=None)

        def make(connection: Connection) -> tuple[TableName, list[Column]]:
            stage = self._sink.name.new(STAGE)  # new: an earlier try may have been committed without an answer
            self._records(connection).make()
            self._records(connection).add_stage(stage, batch.staged, epoch)
            return stage, self._make_stage(connection, stage, columns, held=staged.manifest.held_to)

        stage, made = self._database.run(f"make a stage table for batch {batch.key}", make)
        rows = self._database.run(
            f"load batch {batch.key}",
            lambda connection: self._fill(connection, stage, made, staged, what=f"batch {batch.key} attempt {epoch}"),
        )
        return Loaded(table=stage, columns=made, rows=rows)

    def _make_stage(
        self, connection: Connection, stage: TableName, staged: Sequence[StagedColumn], *, held: Collection[str]
    ) -> list[Column]:
        name, merge = self._sink.name, self._sink.merge
        found = columns_of(connection, name)
        if not found:
            self._check_may_create(connection)
            make_table(connection, name, self._declared() or made_of(staged), merge=merge)
            found = columns_of(connection, name)
        check_table(connection, name, found, merge=merge, declared=self._sink.columns)
        columns = of_stage(name, staged, found, merge=merge, held=held)
        rows = self._rows(connection)
        if isinstance(rows, Merged):
            if self._records(connection).have_rows() and rows.is_empty():
                raise SinkError(f"the changes of {name}, kept in {rows.place}, are gone. {_CHANGES_GONE}")
            rows.make_ready(columns, staged)
        execute(connection, f"CREATE UNLOGGED TABLE {stage.sql} ({', '.join(column.sql for column in columns)})")
        return columns

    @staticmethod
    def _fill(connection: Connection, stage: TableName, columns: Sequence[Column], staged: Staged, *, what: str) -> int:
        execute(connection, f"TRUNCATE {stage.sql}")  # an earlier load may have been committed without an answer, too
        return load(connection, stage, columns, staged.files, staged=staged.columns or (), what=what)

    def _check(self, connection: Connection) -> None:
        name = self._sink.name
        found = columns_of(connection, name)
        if found:
            check_table(connection, name, found, merge=self._sink.merge, declared=self._sink.columns)
            return
        self._check_may_create(connection)
        schema = execute(
            connection, "SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = %s", name.schema
        ).fetchone()
        if schema != (True,):
            why = "there is no such schema" if schema is None else "the connection's login may not CREATE in it"
            raise SinkError(f"{self.location()} cannot be made in schema {name.schema}: {why}.")

    def _check_merge(self, connection: Connection) -> None:
        merge = self._sink.merge
        if merge is not None:
            check_merge(connection, self._sink.name, merge)

    def _intake(self, connection: Connection) -> Intake | None:
        sink, found = self._sink, columns_of(connection, self._sink.name)
        if not found:  # it is made of these before the attempt is published
            types = {column.name: as_written(connection, column.type) for column in self._declared()}
            found = [Column(name=name, type=type, base=type) for name, type in types.items()]
        if not found and sink.merge is None:
            return None
        return intake_of(found, merge=sink.merge, removes_nul=sink.nul_characters == "remove")

    @cached_property
    def _id(self) -> str | None:
        """Asked once: a database does not become another one while a process looks at it."""
        return self._database.run(f"look which table {self._sink.name} is", lambda one: self._records(one).id())

    def _make_ready(self, connection: Connection) -> str | None:
        name, merge = self._sink.name, self._sink.merge
        records = self._records(connection)
        records.make()
        declared, found = self._declared(), columns_of(connection, name)
        if declared and not found:
            self._check_may_create(connection)
            make_table(connection, name, declared, merge=merge)
            found = columns_of(connection, name)
        if found:
            check_table(connection, name, found, merge=merge, declared=self._sink.columns)
        return records.give_id()

    def _check_may_create(self, connection: Connection) -> None:
        if not self._sink.create:
            raise SinkError(f"there is no table {self.location()}, and create=False: make it, or have it made.")
        records, rows = self._records(connection), self._rows(connection)
        if records.are_there() and records.have_rows():
            drop = f" (drop {rows.place} first)" if isinstance(rows, Merged) else ""
            raise SinkError(
                f"the table {self._sink.name} is gone, of which {self._sink.name.sibling(BATCHES)} has batches with "
                "rows: it is not made anew with the next one alone in it. Bring it back; if it was renamed, change "
                f"table_name there and in {TABLES}; if it was dropped on purpose, have microbatch rewind --to -1 "
                f"--drop-output take its batches out{drop}."
            )

    def _declared(self) -> list[Column]:
        return [Column(name=name, type=type) for name, type in self._sink.columns.items()]

    def _mark_dropped(self, connection: Connection, batch: BatchIdentity, epoch: int) -> list[TableName]:
        records = self._records(connection)
        return records.mark_dropped(batch, epoch) if records.are_there() else []

    def _records(self, connection: Connection) -> Records:
        return Records(connection, self._sink.name)

    def _rows(self, connection: Connection) -> Rows:
        merge = self._sink.merge
        if merge is None:
            return Appended(connection, self._sink.name)
        made = Merged if merge.scd_type == 1 else Versioned
        return made(connection, self._sink.name, merge)
