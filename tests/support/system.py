"""What every system of the tests has, and the one of files in folders, of which most others change a part."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.runtime.files import told
from airflow_provider_microbatch.runtime.job import Job, Read, Stage
from airflow_provider_microbatch.sinks import OpenSink, Sink
from airflow_provider_microbatch.sinks import file as file_sink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources import OpenSource, Source
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.log import SourceLog, log_id, offset_of
from airflow_provider_microbatch.sources.file.open import OpenFileSource
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

    def save_table(self) -> bool:
        """A backup of the table is made, in the place of an older one; False if that cannot be."""

    def restore_table(self) -> None:
        """The table is as it was when it was saved."""

    def grow(self, source: str, ids: Sequence[int], row: int) -> bool:
        """Somebody writes one more row to the unit that was landed with these ids; :meth:`restore` takes it out. False
        if that cannot be."""

    def bring_back_what_was_given_up(self, source: str) -> None:
        """A person moves what ``clean_source`` has archived back to where it was, and removes what says that it was
        archived."""

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
        return [batches_in(self._away if self._away.exists() else self._root / "lake")]

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

    def save_table(self) -> bool:
        if type(self).sink is not FilesOnPosix.sink:
            return False
        shutil.rmtree(self._saved, ignore_errors=True)
        if (self._root / "lake").exists():
            shutil.copytree(self._root / "lake", self._saved, symlinks=True)
        return True

    def restore_table(self) -> None:
        shutil.rmtree(self._root / "lake", ignore_errors=True)
        if self._saved.exists():
            shutil.copytree(self._saved, self._root / "lake", symlinks=True)

    @property
    def _saved(self) -> Path:
        return self._root / "lake that was saved"

    def grow(self, source: str, ids: Sequence[int], row: int) -> bool:
        if not self._file(source, ids).exists():
            return False
        with self._file(source, ids).open("a") as file:
            file.write(json.dumps({"id": row}) + "\n")
        return True

    def bring_back_what_was_given_up(self, source: str) -> None:
        for archive in self._root.glob(f"archive*/{source}"):
            for path in sorted(archive.rglob("*.json")):
                if not (self._landing(source) / path.name).exists():
                    path.rename(self._landing(source) / path.name)
        shutil.rmtree(self._landing(source) / ".microbatch_cleaned", ignore_errors=True)

    def execute(self, job: Job, *, version: int) -> Iterator[str]:
        yield "read"
        read = {name: self._read(source) for name, source in job.sources.items()}
        rows = [{**row, "version": version} for found, _ in read.values() for row in found]
        sizes: dict[Path, list[Row]] = {}
        for name, stage in job.stages.items():
            folder, own = folder_of(stage), self.rows_into(job, name, rows)
            middle, sizes[folder] = len(own) // 2, []
            for number, part in enumerate((own[:middle], own[middle:])):
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
            **self.told_beside(job, rows),
        }
        for folder, written in sizes.items():
            yield "write a manifest"
            write_lines(folder / "_manifest" / "part-0.txt", [{"result": result}, *written])

    def rows_into(self, job: Job, name: str, rows: Sequence[Row]) -> Sequence[Row]:
        """Which of the job's rows the table of that name gets."""
        return rows

    def told_beside(self, job: Job, rows: Sequence[Row]) -> Mapping[str, Any]:
        """What the job's result tells beside."""
        return {}

    def rows_of(self, job: Job) -> Sequence[Row]:
        return [row for source in job.sources.values() for row in self._read(source)[0]]

    def fail(self, job: Job, error: str) -> None:
        report = {"origin": "transform", "error": error, "traceback": f"Traceback: {error}"}
        write_lines(folder_of(job.stage) / "_error" / "part-0.txt", [report])

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


def entry_of(ids: Sequence[int]) -> str:
    return json.dumps([{"id": row} for row in ids]) + "\n"


def batches_in(table: Path) -> dict[BatchKey, list[Row]]:
    found = {}
    for folder in table.glob("lane=*/batch_id=*"):
        lane, number = (part.partition("=")[2] for part in (folder.parent.name, folder.name))
        lines = [line for path in folder.glob("part-*") for line in path.read_text().splitlines()]
        found[BatchKey(lane, int(number))] = [json.loads(line) for line in lines]
    return found


def folder_of(stage: Stage) -> Path:
    return Path(stage.arguments["path"].removeprefix("file://"))


def write_lines(path: Path, rows: Sequence[Row]) -> int:
    """As Spark's committers do, folders that somebody removed are made again. How many bytes the file has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.write_text("".join(json.dumps(row) + "\n" for row in rows))
