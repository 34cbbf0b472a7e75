"""What a whole pipeline of the tests lives in: a store, a source and a sink that belong together. ``make chaos`` and
the simulator know systems by the names of :data:`SYSTEMS` alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

from acme_microbatch.polled_queue import PolledQueue
from acme_microbatch.queue import OpenQueue, QueueSource
from acme_microbatch.queue_reader import entries

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.runtime.files import joined
from airflow_provider_microbatch.runtime.job import Job, Read
from airflow_provider_microbatch.runtime.polling import revived
from airflow_provider_microbatch.runtime.subtasks import merged
from airflow_provider_microbatch.sinks import OpenSink, SubtaskStages
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.file.subtasks import FileSubtasks
from airflow_provider_microbatch.sources import OpenSource, Source
from airflow_provider_microbatch.sources.polling.open import OpenPollingSource
from tests.support import object_store, sql
from tests.support.halves import HalvedFiles
from tests.support.merged_systems import (
    ChangesIntoDelta,
    ChangesIntoDeltaInBucket,
    ChangesIntoIceberg,
    ChangesIntoPostgres,
    VersionsInDelta,
    VersionsInDeltaInBucket,
    VersionsInIceberg,
    VersionsInPostgres,
)
from tests.support.system import FilesOnPosix, Row, System, entry_of, write_lines
from tests.support.table_systems import (
    FilesIntoBucket,
    FilesIntoDatabase,
    FilesIntoDelta,
    FilesIntoDeltaInBucket,
    FilesIntoIceberg,
    FilesIntoPostgres,
    FilesIntoTwoTables,
)


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
                    write_lines(stage / f"part-{subtask.name}-{number}.json", part)
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
                write_lines(stage / "_manifest" / "part-0.txt", [{"result": result}, *listed])
            else:
                result = subtask.done["result"]
                listed = [{"file": name, "bytes": size} for name, size in subtask.done["files"].items()]
            results.append(result)
            lines += listed
        yield "write a manifest"
        whole = merged(job, results, load=lambda _: joined)
        write_lines(self._stages(job)[0] / "_manifest" / "part-0.txt", [{"result": whole}, *lines])

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
            queue.write(entry_of(ids))

    def hide(self, source: str, ids: Sequence[int]) -> None:
        # It is the newest: nothing may move what lies behind it.
        self._queue(source).write_text(self._queue(source).read_text().removesuffix(entry_of(ids)))

    def show(self, source: str, ids: Sequence[int]) -> None:
        self.land(source, ids)

    def planned_in(
        self, checkpoint: Checkpoint, names: Sequence[str], source: str, ids: Sequence[int]
    ) -> tuple[str, int] | None:
        lines = self._queue(source).read_text().splitlines(keepends=True)
        place = lines.index(entry_of(ids)) if entry_of(ids) in lines else None
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

    def grow(self, source: str, ids: Sequence[int], row: int) -> bool:
        return False

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


def surroundings(system: str) -> AbstractContextManager[None]:
    """What a run of worlds of the system needs beside their folders, for as long as it goes on."""
    if system not in ("postgres", "postgres-merged", "postgres-versions"):
        return nullcontext()
    from tests.postgres.database import server

    return server()


SYSTEMS: Mapping[str, Callable[[Path], System]] = {
    "files-on-posix": FilesOnPosix,
    "files-in-sqlite": FilesInSqlite,
    "delta": FilesIntoDelta,
    "delta-merged": ChangesIntoDelta,
    "delta-merged-s3": ChangesIntoDeltaInBucket,
    "delta-versions": VersionsInDelta,
    "delta-versions-s3": VersionsInDeltaInBucket,
    "delta-s3": FilesIntoDeltaInBucket,
    "iceberg": FilesIntoIceberg,
    "iceberg-merged": ChangesIntoIceberg,
    "iceberg-versions": VersionsInIceberg,
    "s3": FilesWithCheckpointInS3,
    "s3-table": FilesIntoBucket,
    "files-into-a-database": FilesIntoDatabase,
    "files-into-two-tables": FilesIntoTwoTables,
    "files-split-wise": SplitWiseFiles,
    "late-queues": LateQueues,
    "polled-queues": PolledQueues,
    "sql-sqlite": FilesInOurSqlite,
    "sql-postgres": FilesInPostgres,
    "postgres": FilesIntoPostgres,
    "postgres-merged": ChangesIntoPostgres,
    "postgres-versions": VersionsInPostgres,
}


DEFAULT = "files-on-posix"
