"""Systems whose pipelines write into something else than a table of files."""

from __future__ import annotations

import functools
import importlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from acme_microbatch.database_sink import DatabaseSink, OpenDatabase

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.sinks import OpenSink, Sink
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.delta.log import DeltaLog
from airflow_provider_microbatch.sinks.delta.objects import OpenDeltaInBucket
from airflow_provider_microbatch.sinks.delta.opened import OpenDelta
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.file.objects import OpenObjectTable
from airflow_provider_microbatch.sinks.file.objects.published import Manifests
from airflow_provider_microbatch.sinks.file.objects.stages import Stages
from airflow_provider_microbatch.sinks.iceberg.log import IcebergLog
from airflow_provider_microbatch.sinks.iceberg.opened import OpenIceberg
from airflow_provider_microbatch.sinks.placed.places import Places
from airflow_provider_microbatch.sinks.postgres import PostgresSink
from airflow_provider_microbatch.sinks.postgres.names import TableName
from airflow_provider_microbatch.sinks.postgres.open import OpenPostgres
from airflow_provider_microbatch.sinks.several import Sinks
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.sources.file.open import OpenFileSource
from tests.support import iceberg_table, object_store, shadow
from tests.support.delta_table import batches_of
from tests.support.merged_changes import MERGES, check_shown
from tests.support.system import FilesOnPosix, Row, batches_in


class FilesIntoDatabase(FilesOnPosix):
    """The same into a table of a database, by a sink that another package brings, found by a connection."""

    def sink(self) -> Sink:
        connections.find_by(_database_at)
        return DatabaseSink(str(self._root / "table.db"), stages=str(self._root / "lake"))

    def published(self) -> Sequence[Mapping[BatchKey, list[Row]]]:
        file = self._root / "table.db"
        if not file.exists():
            return [{}]
        with closing(sqlite3.connect(file)) as database:
            batches = database.execute("SELECT lane, id FROM batches").fetchall()
            rows = database.execute("SELECT lane, id, row FROM rows").fetchall()
        found: dict[BatchKey, list[Row]] = {BatchKey(lane, number): [] for lane, number in batches}
        for lane, number, row in rows:
            found[BatchKey(lane, number)].append(json.loads(row))
        return [found]

    def take_away(self) -> bool:
        return False

    def operations(self) -> Sequence[tuple[type, type, str]]:
        return ((OpenSink, OpenDatabase, "sink"), (OpenSource, OpenFileSource, "source"))


def _database_at(conn_id: str) -> Connection:
    return Connection(conn_id=conn_id, conn_type="acme", host=conn_id)


class FilesIntoBucket(FilesOnPosix):
    """The same into a table of objects, with the checkpoint in the same bucket."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        object_store.endpoint()  # of whoever makes the world, since the server ends with who starts it

    def checkpoint(self) -> str:
        return object_store.address(self._root / "checkpoint")

    def sink(self) -> Sink:
        return FileSink(object_store.address(self._root / "lake"), format="json", packages=[])

    def published(self) -> Sequence[Mapping[BatchKey, list[Row]]]:
        """By another client than the one that is tested, as a reader of symlinks does it."""
        s3, found = object_store.client(), dict[BatchKey, list[Row]]()
        prefix = f"{str(self._root.absolute()).strip('/')}/lake/_symlink_format_manifest/"
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=object_store.BUCKET, Prefix=prefix):
            for one in page.get("Contents", []):
                lane, number = (part.partition("=")[2] for part in one["Key"].removeprefix(prefix).split("/")[:2])
                named = [line for line in _text(s3, one["Key"]).splitlines() if "/_nothing/" not in line]
                if named:
                    texts = [_text(s3, line.removeprefix(f"s3://{object_store.BUCKET}/")) for line in named]
                    rows = [json.loads(line) for text in texts for line in text.splitlines()]
                    found[BatchKey(lane, int(number))] = rows
        return [found]

    def take_away(self) -> bool:
        return False

    def execute(self, job: Job, *, version: int) -> Iterator[str]:
        sent = set[Path]()

        def send_new() -> None:
            for stage in job.stages.values():
                new = [path for path in shadow.files_below(shadow.local(stage.report)) if path not in sent]
                shadow.send(stage.report, *new)
                sent.update(new)

        for step in super().execute(_in_files(job), version=version):
            send_new()
            yield step
        send_new()

    def fail(self, job: Job, error: str) -> None:
        super().fail(_in_files(job), error)
        shadow.send(job.stage.report, *shadow.files_below(shadow.local(job.stage.report)))

    def publish_steps(self) -> Sequence[tuple[Any, str, str]]:
        return ((Stages, "claim", "rename"), (Manifests, "put", "exchange"))

    def operations(self) -> Sequence[tuple[type, type, str]]:
        return ((OpenSink, OpenObjectTable, "sink"), (OpenSource, OpenFileSource, "source"))


def _text(s3: Any, key: str) -> str:
    text: str = s3.get_object(Bucket=object_store.BUCKET, Key=key)["Body"].read().decode()
    return text


def _in_files(job: Job) -> Job:
    """The same with its stages where their objects are written first."""
    stages = {}
    for name, stage in job.stages.items():
        path = f"file://{shadow.local(stage.report)}"
        stages[name] = replace(stage, report=path, arguments={**stage.arguments, "path": path})
    return replace(job, stages=stages)


class Looks:
    """Looks at a table, once for each state of its log."""

    def __init__(self) -> None:
        self._log: object = None
        self._seen: Mapping[BatchKey, list[Row]] = {}

    def at(self, log: object, look: Callable[[], Mapping[BatchKey, list[Row]]]) -> Mapping[BatchKey, list[Row]]:
        """What readers find.

        :param log: its state.
        """
        if log != self._log:
            self._seen, self._log = look(), log
        return self._seen


def _state_of(table: Path, log: Iterable[Path]) -> object:
    """:param table: the folder of its data: what is gone there is gone for readers, whatever the log says."""
    data = [*table.glob("microbatch/**/*.parquet"), *table.glob("_microbatch/changes/**/*.parquet")]
    found = {path: path.stat() for path in (*log, *data) if path.exists()}
    return {path: (one.st_ino, one.st_mtime_ns, one.st_size) for path, one in found.items()}


class FilesIntoDelta(FilesOnPosix):
    """The same into a Delta table."""

    scd_type: ClassVar[int] = 0
    """The type of its merge; 0 for a table of rows."""
    looks: Looks | None = None
    """Looks at the table in this process, where nobody is forked from it; else another process does."""

    def sink(self) -> Sink:
        return DeltaSink(str(self._root / "lake"), merge=MERGES.get(self.scd_type))

    def published(self) -> Sequence[Mapping[BatchKey, list[Row]]]:
        lake = self._away if self._away.exists() else self._root / "lake"
        if self.looks is None:
            return [batches_of(str(lake), scd_type=self.scd_type)]
        look = functools.partial(batches_of, str(lake), scd_type=self.scd_type, apart=False)
        return [self.looks.at(_state_of(lake, lake.glob("_delta_log/*.json")), look)]

    def publish_steps(self) -> Sequence[tuple[Any, str, str]]:
        return ((Places, "take", "rename"), (DeltaLog, "commit", "exchange"), (DeltaLog, "create", "exchange"))

    def operations(self) -> Sequence[tuple[type, type, str]]:
        return ((OpenSink, OpenDelta, "sink"), (OpenSource, OpenFileSource, "source"))


class FilesIntoDeltaInBucket(FilesIntoBucket):
    """The same into a Delta table in a bucket, with the checkpoint in the same one."""

    scd_type: ClassVar[int] = 0
    looks: Looks | None = None

    def sink(self) -> Sink:
        return DeltaSink(object_store.address(self._root / "lake"), merge=MERGES.get(self.scd_type), packages=[])

    def published(self) -> Sequence[Mapping[BatchKey, list[Row]]]:
        lake = object_store.address(self._root / "lake")
        if self.looks is None:
            return [batches_of(lake, scd_type=self.scd_type)]
        look = functools.partial(batches_of, lake, scd_type=self.scd_type, apart=False)
        return [self.looks.at(object_store.versions(self._root / "lake"), look)]

    def publish_steps(self) -> Sequence[tuple[Any, str, str]]:
        return ((Stages, "claim", "rename"), (DeltaLog, "commit", "exchange"), (DeltaLog, "create", "exchange"))

    def operations(self) -> Sequence[tuple[type, type, str]]:
        return ((OpenSink, OpenDeltaInBucket, "sink"), (OpenSource, OpenFileSource, "source"))


class FilesIntoIceberg(FilesOnPosix):
    """The same into an Iceberg table."""

    scd_type: ClassVar[int] = 0
    looks: Looks | None = None

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        # Before tasks are forked from this process: imported in each, it would cost ten times what the task is to do.
        importlib.import_module("pyiceberg.catalog.sql")
        importlib.import_module("pyiceberg.io.pyarrow")

    def sink(self) -> Sink:
        connections.find_by(lambda _: iceberg_table.connection_of(self._root))
        return iceberg_table.sink_in(self._root, merge=MERGES.get(self.scd_type))

    def published(self) -> Sequence[Mapping[BatchKey, list[Row]]]:
        if self.looks is None:
            return [iceberg_table.batches_of(self._root, scd_type=self.scd_type)]
        look = functools.partial(iceberg_table.batches_of, self._root, scd_type=self.scd_type, apart=False)
        return [self.looks.at(_state_of(self._root / "orders", [iceberg_table.catalog_file(self._root)]), look)]

    def take_away(self) -> bool:
        return False  # whoever looks finds that the catalog's table has no files

    def publish_steps(self) -> Sequence[tuple[Any, str, str]]:
        return ((Places, "take", "rename"), (IcebergLog, "commit", "exchange"), (IcebergLog, "create", "exchange"))

    def operations(self) -> Sequence[tuple[type, type, str]]:
        return ((OpenSink, OpenIceberg, "sink"), (OpenSource, OpenFileSource, "source"))


class FilesIntoPostgres(FilesOnPosix):
    """The same into a table of PostgreSQL. The stage's lines are for COPY."""

    scd_type: ClassVar[int] = 0

    def sink(self) -> Sink:
        from tests.postgres import database

        connections.find_by(database.connection_of)
        table, merge = database.table_in(self._root), MERGES.get(self.scd_type)
        return PostgresSink(database.CONN_ID, table, stages=str(self._root / "stages"), merge=merge)

    def published(self) -> Sequence[Mapping[BatchKey, list[Row]]]:
        from tests.postgres import database

        sink = self.sink()
        assert isinstance(sink, PostgresSink)
        found: dict[BatchKey, list[Row]] = {}
        with database.connect() as connection:
            # A reader's snapshot: of two statements each has its own, unless one says otherwise.
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            if connection.execute("SELECT to_regclass(%s)", [sink.name.text]).fetchone() == (None,):
                return [{}]
            batches = sink.name.sibling("microbatch_batches").text
            for lane, id in connection.execute(f"SELECT lane, id FROM {batches}".encode()):
                found[BatchKey(lane, id)] = []
            # Readers see what changes make; which batch brought them the table beside says.
            rows = sink.name.changes(self.scd_type) if self.scd_type else sink.name
            brought, shown = (_rows_of(connection, table) for table in (rows, sink.name))
        for row in brought:
            key = BatchKey(row["_batch_lane"], row["_batch_id"])
            found[key].append({"id": row["id"], "version": row["version"]})
        if self.scd_type:
            check_shown(brought, shown, scd_type=self.scd_type)
        return [found]

    def take_away(self) -> bool:
        return False

    def operations(self) -> Sequence[tuple[type, type, str]]:
        return ((OpenSink, OpenPostgres, "sink"), (OpenSource, OpenFileSource, "source"))

    def publish_steps(self) -> Sequence[tuple[Any, str, str]]:
        from airflow_provider_microbatch.sinks.postgres import open as opened
        from airflow_provider_microbatch.sinks.postgres.records import Records

        return ((opened, "load", "rename"), (Records, "change", "exchange"))


def _rows_of(connection: Any, table: TableName) -> list[Row]:
    """Those of a table of PostgreSQL."""
    found = connection.execute(f"SELECT * FROM {table.text}".encode())
    names = [column.name for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found]


class FilesIntoTwoTables(FilesOnPosix):
    """The same into two tables, each of which gets all rows."""

    def sink(self) -> Sink:
        copies = FileSink(str(self._root / "copies"), format="json")
        return Sinks({"orders": FileSink(str(self._root / "lake"), format="json"), "copies": copies})

    def published(self) -> Sequence[Mapping[BatchKey, list[Row]]]:
        return [*super().published(), batches_in(self._root / "copies")]
