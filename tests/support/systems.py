"""What a whole pipeline of the tests lives in: a store, a source and a sink that belong together. ``make chaos`` and
the simulator know systems by the names of :data:`SYSTEMS` alone."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Protocol

from acme_microbatch.database_sink import DatabaseSink, OpenDatabase
from acme_microbatch.polled_queue import PolledQueue
from acme_microbatch.queue import OpenQueue, QueueSource
from acme_microbatch.queue_reader import entries

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.runtime.files import joined, told
from airflow_provider_microbatch.runtime.job import Job, Read, Stage
from airflow_provider_microbatch.runtime.polling import revived
from airflow_provider_microbatch.runtime.subtasks import merged
from airflow_provider_microbatch.sinks import OpenSink, Sink, SubtaskStages
from airflow_provider_microbatch.sinks import file as file_sink
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.delta.log import DeltaLog
from airflow_provider_microbatch.sinks.delta.opened import OpenDelta
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.file.subtasks import FileSubtasks
from airflow_provider_microbatch.sinks.iceberg.log import IcebergLog
from airflow_provider_microbatch.sinks.iceberg.opened import OpenIceberg
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.placed.places import Places
from airflow_provider_microbatch.sinks.postgres import PostgresSink
from airflow_provider_microbatch.sinks.postgres.open import OpenPostgres
from airflow_provider_microbatch.sinks.several import Sinks
from airflow_provider_microbatch.sources import OpenSource, Source
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.log import SourceLog, log_id, offset_of
from airflow_provider_microbatch.sources.file.open import OpenFileSource
from airflow_provider_microbatch.sources.polling.open import OpenPollingSource
from tests.support import iceberg_table, object_store, sql
from tests.support.delta_table import batches_of
from tests.support.halves import HalvedFiles
from tests.support.stage_parts import write_part

Row = dict[str, Any]


class System(Protocol):
    """Made with the folder that is the world's own; any process that makes it with this folder sees the same."""

    # A system may have `split_wise`, which says that its pipelines of one source are.
    has_clock: ClassVar[bool]
    """Whether the source knows the time of what lands, so that data intervals can be run."""

    def checkpoint(self) -> str:
        """Where a pipeline's checkpoint lies, as its definition says it."""

    def source(self, name: str, *, limit: int | None = None, cleans: bool = False, archive: str = "archive") -> Source:
        """The source, with the one column ``id``.

        :param limit: so many units of what lands are in a batch at most; None for no limit.
        :param cleans: whether the source gives up what is committed.
        :param archive: where to, of the places that there are for it.
        """

    def sink(self) -> Sink:
        """The table."""

    def prepare(self, source: str) -> None:
        """Make the place that the source reads; called once."""

    def land(self, source: str, ids: Sequence[int], *, at_ms: int | None = None) -> None:
        """One unit of data with these ids, whole at once.

        :param at_ms: its time by the source's clock; None: now.
        """

    def hide(self, source: str, ids: Sequence[int]) -> None:
        """No listing shows the unit that was landed with these ids: listings lag behind."""

    def show(self, source: str, ids: Sequence[int]) -> None:
        """From now on listings show the unit, as it was landed."""

    def rewrite(self, source: str, ids: Sequence[int], *, at_ms: int) -> bool:
        """Change the unit that was landed with these ids, as who lands it again does: its rows stay, with other bytes.
        False if it is not there any more, or the source's units cannot change."""

    def planned_in(
        self, checkpoint: Checkpoint, names: Sequence[str], source: str, ids: Sequence[int]
    ) -> tuple[str, int] | None:
        """Lane, and place in the source's order, of the unit that was landed with these ids; None if it is not planned.

        :param names: what the source is and was called in the checkpoint.
        """

    def place(self, offset: Offset | None) -> int:
        """The place in the source's order up to which a position reaches; -1 for none."""

    def offset(self, place: int) -> Offset | None:
        """The position behind the unit at that place."""

    def restore(self, source: str, ids: Sequence[int], *, at_ms: int) -> None:
        """Undo :meth:`rewrite`: the unit as it was landed at that time."""

    def not_given_up(self, source: str) -> list[str]:
        """Units that a source which cleans has not given up yet."""

    def published(self) -> Sequence[Mapping[BatchKey, list[Row]]]:
        """What a reader of each table finds, by batch; where it is away, what he will find when it is back."""

    def take_away(self) -> bool:
        """The table is away, as where its file system is not mounted: who looks finds nothing, who writes writes
        elsewhere, and it is gone when the table is back. False if that cannot be: who does not reach it is told so."""

    def bring_back(self) -> bool:
        """The table is back; False if it was not away."""

    def execute(self, job: Job, *, version: int) -> Iterator[str]:
        """What an engine does for a job, step by step; each row gets the code's ``version``.

        :return: before each step, what comes next.
        """

    def rows_of(self, job: Job) -> Sequence[Row]:
        """What the job reads."""

    def fail(self, job: Job, error: str) -> None:
        """What an engine leaves of a job whose transform raised."""

    def operations(self) -> Sequence[tuple[type, type, str]]:
        """The seams that the system fills: base, class, and its name for people."""

    def publish_steps(self) -> Sequence[tuple[Any, str, str]]:
        """Where a process may die while the sink publishes: owner and name of a function, and the point's."""


class FilesOnPosix:
    """JSON files that land in folders, a checkpoint in a folder, a table of files.

    :param root: folder of the world.
    """

    has_clock: ClassVar[bool] = True

    def __init__(self, root: Path) -> None:
        self._root = root

    def checkpoint(self) -> str:
        return str(self._root / "checkpoint")

    def source(self, name: str, *, limit: int | None = None, cleans: bool = False, archive: str = "archive") -> Source:
        return FileSource(
            str(self._landing(name)),
            schema="id long",
            max_files=limit,
            clean_source="archive" if cleans else None,
            archive_dir=str(self._root / archive / name) if cleans else None,
        )

    def sink(self) -> Sink:
        return FileSink(str(self._root / "lake"), format="json")

    def prepare(self, source: str) -> None:
        self._landing(source).mkdir(parents=True)

    def land(self, source: str, ids: Sequence[int], *, at_ms: int | None = None) -> None:
        self._write(source, ids, at_ms=at_ms)

    def hide(self, source: str, ids: Sequence[int]) -> None:
        self._file(source, ids).rename(self._hidden(source, ids))

    def show(self, source: str, ids: Sequence[int]) -> None:
        self._hidden(source, ids).rename(self._file(source, ids))

    def planned_in(
        self, checkpoint: Checkpoint, names: Sequence[str], source: str, ids: Sequence[int]
    ) -> tuple[str, int] | None:
        path = str(self._file(source, ids))
        for log in map(checkpoint.source_log, names):
            newest = max(numbers(log.list("")), default=-1)
            for file in SourceLog(log).range(-1, newest):
                if file.path == path:
                    return file.lane, file.log_id
        return None

    def place(self, offset: Offset | None) -> int:
        return log_id(offset)

    def offset(self, place: int) -> Offset | None:
        return None if place < 0 else offset_of(place)

    def rewrite(self, source: str, ids: Sequence[int], *, at_ms: int) -> bool:
        if not self._file(source, ids).exists():
            return False
        self._write(source, ids, at_ms=at_ms, end=" \n")
        return True

    def restore(self, source: str, ids: Sequence[int], *, at_ms: int) -> None:
        if self._file(source, ids).exists():
            self._write(source, ids, at_ms=at_ms)

    def not_given_up(self, source: str) -> list[str]:
        return [str(path) for path in self._landing(source).glob("[!.]*")]

    def published(self) -> Sequence[Mapping[BatchKey, list[Row]]]:
        return [_batches(self._away if self._away.exists() else self._root / "lake")]

    @property
    def _away(self) -> Path:
        return self._root / "lake that is away"

    def take_away(self) -> bool:
        (self._root / "lake").rename(self._away)
        (self._root / "lake").mkdir()
        return True

    def bring_back(self) -> bool:
        if not self._away.exists():
            return False
        shutil.rmtree(self._root / "lake")
        self._away.rename(self._root / "lake")
        return True

    def execute(self, job: Job, *, version: int) -> Iterator[str]:
        yield "read"
        read = {name: self._read(source) for name, source in job.sources.items()}
        rows = [{**row, "version": version} for found, _ in read.values() for row in found]
        middle = len(rows) // 2
        sizes: dict[Path, list[Row]] = {}
        for stage in job.stages.values():
            folder = _folder(stage)
            sizes[folder] = []
            for number, part in enumerate((rows[:middle], rows[middle:])):
                yield "write half of a stage"
                sizes[folder].append(write_part(folder, stage.writer, stage.arguments, f"part-{number}", part))
        result = {
            "numInputRows": {name: len(found) for name, (found, _) in read.items()},
            "numOutputRows": len(rows),
            "durationMs": {"total": 1},
            "batchId": job.batch_id,
            "epoch": job.epoch,
            "read": {name: told for name, (_, told) in read.items()},
            "identity": dict(job.identity),
        }
        for folder, written in sizes.items():
            yield "write a manifest"
            _write_lines(folder / "_manifest" / "part-0.txt", [{"result": result}, *written])

    def rows_of(self, job: Job) -> Sequence[Row]:
        return [row for source in job.sources.values() for row in self._read(source)[0]]

    def fail(self, job: Job, error: str) -> None:
        report = {"origin": "transform", "error": error, "traceback": f"Traceback: {error}"}
        _write_lines(_folder(job.stage) / "_error" / "part-0.txt", [report])

    def operations(self) -> Sequence[tuple[type, type, str]]:
        return ((OpenSink, FileSink, "sink"), (OpenSource, OpenFileSource, "source"))

    def publish_steps(self) -> Sequence[tuple[Any, str, str]]:
        return ((file_sink, "rename_new", "rename"), (file_sink, "exchange", "exchange"))

    def _read(self, source: Read) -> tuple[list[Row], Mapping[str, Any]]:
        """The rows, and what a reader tells of them."""
        groups = source.arguments["groups"]
        paths = [Path(path.removeprefix("file://")) for group in groups for path in group["paths"]]
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()], told(source.arguments)

    def _file(self, source: str, ids: Sequence[int]) -> Path:
        return self._landing(source) / f"{ids[0]:06}.json"

    def _write(self, source: str, ids: Sequence[int], *, at_ms: int | None, end: str = "\n") -> None:
        hidden = self._hidden(source, ids)
        hidden.write_text("".join(json.dumps({"id": row}) + end for row in ids))
        if at_ms is not None:
            os.utime(hidden, ns=(at_ms * 1_000_000, at_ms * 1_000_000))
        hidden.rename(self._file(source, ids))

    def _hidden(self, source: str, ids: Sequence[int]) -> Path:
        return self._landing(source) / f".{ids[0]}"

    def _landing(self, source: str) -> Path:
        return self._root / "landing" / source


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


class FilesIntoDelta(FilesOnPosix):
    """The same into a Delta table."""

    def sink(self) -> Sink:
        return DeltaSink(str(self._root / "lake"))

    def published(self) -> Sequence[Mapping[BatchKey, list[Row]]]:
        lake = self._away if self._away.exists() else self._root / "lake"
        return [batches_of(lake)]

    def publish_steps(self) -> Sequence[tuple[Any, str, str]]:
        return ((Places, "take", "rename"), (DeltaLog, "commit", "exchange"), (DeltaLog, "create", "exchange"))

    def operations(self) -> Sequence[tuple[type, type, str]]:
        return ((OpenSink, OpenDelta, "sink"), (OpenSource, OpenFileSource, "source"))


class FilesIntoIceberg(FilesOnPosix):
    """The same into an Iceberg table."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        # Before tasks are forked from this process: imported in each, it would cost ten times what the task is to do.
        importlib.import_module("pyiceberg.catalog.sql")
        importlib.import_module("pyiceberg.io.pyarrow")

    def sink(self) -> Sink:
        connections.find_by(lambda _: iceberg_table.connection_of(self._root))
        return iceberg_table.sink_in(self._root)

    def published(self) -> Sequence[Mapping[BatchKey, list[Row]]]:
        return [iceberg_table.batches_of(self._root)]

    def take_away(self) -> bool:
        return False  # whoever looks finds that the catalog's table has no files

    def publish_steps(self) -> Sequence[tuple[Any, str, str]]:
        return ((Places, "take", "rename"), (IcebergLog, "commit", "exchange"), (IcebergLog, "create", "exchange"))

    def operations(self) -> Sequence[tuple[type, type, str]]:
        return ((OpenSink, OpenIceberg, "sink"), (OpenSource, OpenFileSource, "source"))


class FilesIntoPostgres(FilesOnPosix):
    """The same into a table of PostgreSQL. The stage's lines are for COPY."""

    merge: ClassVar[Merge | None] = None

    def sink(self) -> Sink:
        from tests.postgres import database

        connections.find_by(database.connection_of)
        table = database.table_in(self._root)
        return PostgresSink(database.CONN_ID, table, stages=str(self._root / "stages"), merge=self.merge)

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
            # Of changes, readers see the newest; which batch brought it the table beside says.
            rows = sink.name.text if self.merge is None else sink.name.changes().text
            for lane, id, row, version in connection.execute(
                f"SELECT _batch_lane, _batch_id, id, version FROM {rows}".encode()
            ):
                found[BatchKey(lane, id)].append({"id": row, "version": version})
            shown = connection.execute(f"SELECT id, version FROM {sink.name.text}".encode()).fetchall()
        told = sorted((row["id"], row["version"]) for rows in found.values() for row in rows)
        assert sorted(shown) == told, f"the table shows {sorted(shown)}, and has {told} on record"
        return [found]

    def take_away(self) -> bool:
        return False

    def operations(self) -> Sequence[tuple[type, type, str]]:
        return ((OpenSink, OpenPostgres, "sink"), (OpenSource, OpenFileSource, "source"))

    def publish_steps(self) -> Sequence[tuple[Any, str, str]]:
        from airflow_provider_microbatch.sinks.postgres import open as opened
        from airflow_provider_microbatch.sinks.postgres.records import Records

        return ((opened, "load", "rename"), (Records, "change", "exchange"))


class FilesInSqlite(FilesOnPosix):
    """The same with the checkpoint in a store that another package brings."""

    def checkpoint(self) -> str:
        return f"sqlite://{self._root}/checkpoint.db"


class FilesInOurSqlite(FilesOnPosix):
    """The same with the checkpoint in a table of a SQLite file."""

    def checkpoint(self) -> str:
        return sql.in_sqlite(self._root)


class FilesInPostgres(FilesOnPosix):
    """The same with the checkpoint in a table of a PostgreSQL server."""

    def checkpoint(self) -> str:
        return sql.in_postgres(self._root)


class FilesWithCheckpointInS3(FilesOnPosix):
    """The same with the checkpoint in an object store."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        object_store.endpoint()  # of whoever makes the world, since the server ends with who starts it

    def checkpoint(self) -> str:
        return object_store.address(self._root / "checkpoint")


class FilesIntoTwoTables(FilesOnPosix):
    """The same into two tables, each of which gets all rows."""

    def sink(self) -> Sink:
        copies = FileSink(str(self._root / "copies"), format="json")
        return Sinks({"orders": FileSink(str(self._root / "lake"), format="json"), "copies": copies})

    def published(self) -> Sequence[Mapping[BatchKey, list[Row]]]:
        return [*super().published(), _batches(self._root / "copies")]


class SplitWiseFiles(FilesOnPosix):
    """The same by pipelines that are run half a file by half a file, where they have one source."""

    split_wise: ClassVar[bool] = True

    def source(self, name: str, *, limit: int | None = None, cleans: bool = False, archive: str = "archive") -> Source:
        found = super().source(name, limit=limit, cleans=cleans, archive=archive)
        return HalvedFiles(**{field.name: getattr(found, field.name) for field in fields(found)})

    def execute(self, job: Job, *, version: int) -> Iterator[str]:
        if not job.subtasks:
            yield from super().execute(job, version=version)
            return
        results, lines = list[Mapping[str, Any]](), list[Row]()
        for subtask in job.subtasks:
            if subtask.done is None:
                yield "read"
                found, told = self._read(subtask.read)
                found = found[subtask.read.arguments["half"] :: 2]
                stage = Path(subtask.stage.arguments["path"].removeprefix("file://"))
                rows = [{**row, "version": version} for row in found]
                for number, part in enumerate((rows[:1], rows[1:])):
                    yield "write half of a subtask"
                    _write_lines(stage / f"part-{subtask.name}-{number}.json", part)
                # As Spark's own listing does, it sees what is there: a part of it may have been removed meanwhile.
                listed = [{"file": path.name, "bytes": path.stat().st_size} for path in sorted(stage.glob("part-*"))]
                result: dict[str, Any] = {
                    "numInputRows": {subtask.source: len(rows)},
                    "numOutputRows": len(rows),
                    "durationMs": {"total": 1},
                    "batchId": job.batch_id,
                    "epoch": job.epoch,
                    "read": {subtask.source: told},
                    "identity": dict(job.identity),
                    "subtask": {"name": subtask.name, "split": subtask.split, "madeOf": subtask.made_of},
                }
                yield "write a manifest of a subtask"
                _write_lines(stage / "_manifest" / "part-0.txt", [{"result": result}, *listed])
            else:
                result = subtask.done["result"]
                listed = [{"file": name, "bytes": size} for name, size in subtask.done["files"].items()]
            results.append(result)
            lines += listed
        yield "write a manifest"
        whole = merged(job, results, load=lambda _: joined)
        _write_lines(self._stages(job)[0] / "_manifest" / "part-0.txt", [{"result": whole}, *lines])

    def rows_of(self, job: Job) -> Sequence[Row]:
        return [*super().rows_of(job), *(row for subtask in job.subtasks for row in self._read(subtask.read)[0])]

    def operations(self) -> Sequence[tuple[type, type, str]]:
        return (*super().operations(), (SubtaskStages, FileSubtasks, "subtasks"))


class LateQueues(FilesOnPosix):
    """Queues of which nobody knows where a batch ends before it is read, by a source that another package brings."""

    has_clock: ClassVar[bool] = False

    def source(self, name: str, *, limit: int | None = None, cleans: bool = False, archive: str = "archive") -> Source:
        return QueueSource(str(self._queue(name)))

    def prepare(self, source: str) -> None:
        super().prepare(source)
        self._queue(source).touch()

    def land(self, source: str, ids: Sequence[int], *, at_ms: int | None = None) -> None:
        with self._queue(source).open("a") as queue:
            queue.write(_entry(ids))

    def hide(self, source: str, ids: Sequence[int]) -> None:
        # It is the newest: nothing may move what lies behind it.
        self._queue(source).write_text(self._queue(source).read_text().removesuffix(_entry(ids)))

    def show(self, source: str, ids: Sequence[int]) -> None:
        self.land(source, ids)

    def planned_in(
        self, checkpoint: Checkpoint, names: Sequence[str], source: str, ids: Sequence[int]
    ) -> tuple[str, int] | None:
        lines = self._queue(source).read_text().splitlines(keepends=True)
        place = lines.index(_entry(ids)) if _entry(ids) in lines else None
        ends = [entry.ends.get(name) for _, entry in checkpoint.offset_log.range() for name in names]
        return None if place is None or place > max(map(self.place, ends), default=-1) else (LIVE, place)

    def place(self, offset: Offset | None) -> int:
        return -1 if offset is None else int(json.loads(offset)["n"]) - 1

    def offset(self, place: int) -> Offset | None:
        return None if place < 0 else json.dumps({"n": place + 1})

    def rewrite(self, source: str, ids: Sequence[int], *, at_ms: int) -> bool:
        return False

    def not_given_up(self, source: str) -> list[str]:
        return []

    def operations(self) -> Sequence[tuple[type, type, str]]:
        return ((OpenSink, FileSink, "sink"), (OpenSource, OpenQueue, "source"))

    def _read(self, source: Read) -> tuple[list[Row], Mapping[str, Any]]:
        rows, end = entries(source.arguments)
        return rows, {"end": end}

    def _queue(self, source: str) -> Path:
        return self._landing(source) / "queue"


class PolledQueues(LateQueues):
    """The same queues by a source of the user's own, which knows where a batch ends before it is read."""

    def source(self, name: str, *, limit: int | None = None, cleans: bool = False, archive: str = "archive") -> Source:
        return PolledQueue(str(self._queue(name)), max_lines=limit)

    def operations(self) -> Sequence[tuple[type, type, str]]:
        return ((OpenSink, FileSink, "sink"), (OpenSource, OpenPollingSource, "source"))

    def _read(self, source: Read) -> tuple[list[Row], Mapping[str, Any]]:
        arguments = source.arguments
        return [dict(row) for row in revived(arguments).read(arguments["start"], arguments["end"])], {}


def _entry(ids: Sequence[int]) -> str:
    return json.dumps([{"id": row} for row in ids]) + "\n"


def _batches(table: Path) -> dict[BatchKey, list[Row]]:
    found = {}
    for folder in table.glob("lane=*/batch_id=*"):
        lane, number = (part.partition("=")[2] for part in (folder.parent.name, folder.name))
        lines = [line for path in folder.glob("part-*") for line in path.read_text().splitlines()]
        found[BatchKey(lane, int(number))] = [json.loads(line) for line in lines]
    return found


def _folder(stage: Stage) -> Path:
    return Path(stage.arguments["path"].removeprefix("file://"))


def _write_lines(path: Path, rows: Sequence[Row]) -> int:
    """As Spark's committers do, folders that somebody removed are made again. How many bytes the file has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.write_text("".join(json.dumps(row) + "\n" for row in rows))


class ChangesIntoPostgres(FilesIntoPostgres):
    """The same, merged by id: what each batch brought is kept beside the table."""

    merge = Merge(keys=("id",), sequence_by=("version",))


def surroundings(system: str) -> AbstractContextManager[None]:
    """What a run of worlds of the system needs beside their folders, for as long as it goes on."""
    if system not in ("postgres", "postgres-merged"):
        return nullcontext()
    from tests.postgres.database import server

    return server()


SYSTEMS: Mapping[str, Callable[[Path], System]] = {
    "files-on-posix": FilesOnPosix,
    "files-in-sqlite": FilesInSqlite,
    "delta": FilesIntoDelta,
    "iceberg": FilesIntoIceberg,
    "s3": FilesWithCheckpointInS3,
    "files-into-a-database": FilesIntoDatabase,
    "files-into-two-tables": FilesIntoTwoTables,
    "files-split-wise": SplitWiseFiles,
    "late-queues": LateQueues,
    "polled-queues": PolledQueues,
    "sql-sqlite": FilesInOurSqlite,
    "sql-postgres": FilesInPostgres,
    "postgres": FilesIntoPostgres,
    "postgres-merged": ChangesIntoPostgres,
}
DEFAULT = "files-on-posix"
