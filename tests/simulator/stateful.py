"""A system whose pipelines keep state, and a small engine in place of Spark's streaming one. It is shown a checkpoint
folder of the attempt's own, and runs the batch that is planned there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.runtime.streaming import PROVIDER, ROCKSDB
from airflow_provider_microbatch.runtime.streaming_folder import (
    STATE,
    leave_state,
    make_folder,
    read_commit,
    remove_folder,
    write_folder,
)
from airflow_provider_microbatch.runtime.streaming_job import Stream, Streaming
from tests.simulator.state_files import Change, Loaded, Partition, is_whole
from tests.support.stage_parts import write_part
from tests.support.system import FilesOnPosix, Row, batches_in, folder_of, write_lines

PARTITIONS = 2
OPERATOR = "0"
CONF = {PROVIDER: ROCKSDB, "spark.sql.shuffle.partitions": str(PARTITIONS)}

MARKER = -1
"""Id of the row, of each batch and partition, that tells from which state it was made, and which it has left."""

Told = Mapping[BatchKey, Mapping[int, Row]]


class StatefulFiles(FilesOnPosix):
    """Files that land, and a table; each fifth row waits in the state for the next batch, as behind a watermark."""

    has_clock: ClassVar[bool] = False  # no data intervals: state goes from batch to batch

    def arguments(self) -> dict[str, Any]:
        """What the pipeline has for it."""
        return {"stateful": True, "output_mode": "update", "on_failure": "fail"}

    def published(self) -> Sequence[Mapping[BatchKey, list[Row]]]:
        found = super().published()
        return [{key: [row for row in rows if row["id"] != MARKER] for key, rows in of.items()} for of in found]

    def told(self) -> Told:
        """By batch and partition, what its published attempt tells of the state."""
        found = batches_in(self._root / "lake")
        return {key: {row["partition"]: row for row in rows if row["id"] == MARKER} for key, rows in found.items()}

    def rows_of(self, job: Job) -> Sequence[Row]:
        assert job.streaming is not None
        return [*super().rows_of(job), *(row for one in job.streaming.sources.values() for row in _rows_of(one))]

    def execute(self, job: Job, *, version: int) -> Iterator[str]:
        streaming = job.streaming
        assert streaming is not None
        yield "make a folder of its own"
        make_folder(streaming)
        try:
            yield from self._run(job, streaming, version=version)
        finally:
            remove_folder(streaming.folder)

    def _run(self, job: Job, streaming: Streaming, *, version: int) -> Iterator[str]:
        yield "read"
        read = {name: self._read(source) for name, source in job.sources.items()}
        rows = {name: found for name, (found, _) in read.items()}
        rows |= {name: list(_rows_of(stream)) for name, stream in streaming.sources.items()}
        told = {name: told for name, (_, told) in read.items()}
        told |= {name: dict(stream.told) for name, stream in streaming.sources.items() if stream.told}
        conf = dict(CONF if streaming.before is None else streaming.before["conf"])
        streams = list(streaming.sources.values())
        write_folder(
            streaming, streams, streams, batch_id=job.batch_id, watermark_ms=job.watermark_ms,
            timestamp_ms=job.batch_timestamp_ms, conf=conf,
        )  # fmt: skip
        folder = folder_of(job.stage)
        query = _Query(Path(streaming.folder), job, since=(streaming.before or {}).get("since"))
        new, sizes = [row for found in rows.values() for row in found], list[Row]()
        for number in range(PARTITIONS):
            yield f"load the state of partition {number}"
            try:
                query.load(number)
            except FileNotFoundError as gone:
                # As the runtime does: who leaves no report was killed, and nobody looks for its state.
                yield "report the failure"
                write_lines(folder / "_error" / "part-0.txt", [BatchFailure("runtime", str(gone)).report()])
                raise
            yield "write half of a stage"
            told_rows = query.rows(number, new, version=version)
            sizes.append(write_part(folder, job.stage.writer, job.stage.arguments, f"part-{number}", told_rows))
            yield f"write the state of partition {number}"
            query.keep(number)
        yield "write Spark's commit"
        query.commit()
        yield "read Spark's commit"
        commit = read_commit(streaming.folder, job.batch_id)
        yield "leave the state where all find it"
        leave_state(streaming, job.batch_id)
        state = {
            "ids": commit["stateUniqueIds"],
            "base": None if streaming.before is None else streaming.before["ids"],
            "conf": conf,
            "nextWatermarkMs": commit["nextBatchWatermarkMs"],
            "outputMode": streaming.output_mode,
            "sparkVersion": "4.1.3",
            **({"since": streaming.before["since"]} if "since" in (streaming.before or {}) else {}),
        }
        result = {
            "batchId": job.batch_id,
            "epoch": job.epoch,
            "identity": dict(job.identity),
            "numInputRows": {name: len(found) for name, found in rows.items()},
            "numOutputRows": query.told,
            "durationMs": {"total": 1},
            "read": told,
            "requiresAnotherBatch": query.waits,
            "state": state,
        }
        yield "write a manifest"
        write_lines(folder / "_manifest" / "part-0.txt", [{"result": result}, *sizes])


class _Query:
    """A streaming query that runs the one batch that is planned in its checkpoint folder."""

    def __init__(self, folder: Path, job: Job, *, since: int | None) -> None:
        self._folder = folder
        self._job = job
        self._number = max(int(path.name) for path in (folder / "offsets").iterdir())
        self._watermark_ms = _watermark_of(folder / "offsets" / str(self._number))
        self._whole = is_whole(self._number, since=since)
        self._before: dict[int, Loaded] = {}
        self._changes: dict[int, Change] = {}
        self._ids: dict[int, str] = {}
        self.told = 0
        self.waits = False

    def load(self, number: int) -> None:
        """Begin with the state that the commit of the batch before names."""
        ids = None
        if self._number > 0:
            ids = read_commit(str(self._folder), self._number - 1)["stateUniqueIds"][OPERATOR][number][0]
        self._before[number] = self._partition(number).load(self._number, ids)

    def rows(self, number: int, new: Sequence[Row], *, version: int) -> list[Row]:
        """What the batch tells, and the marker."""
        own = [row["id"] for row in new if row["id"] % PARTITIONS == number]
        held, before = [row for row in own if row % 5 == 4], self._before[number].changes
        told = [*(before[-1]["held"] if before else ()), *(row for row in own if row % 5 != 4)]
        attempt = [self._number, self._job.epoch]
        self._changes[number] = {"by": attempt, "rows": own, "held": held}
        self.told += len(told)
        self.waits = self.waits or bool(held)
        marker = {
            "id": MARKER,
            "partition": number,
            "by": attempt,
            "history": [one["by"] for one in before],
            "known": sorted(row for one in before for row in one["rows"]),
            "held": held,
            "watermark": self._watermark_ms,
        }
        return [marker, *({"id": row, "version": version} for row in told)]

    def keep(self, number: int) -> None:
        """Commit a partition's state."""
        self._ids[number] = self._partition(number).write(
            self._number + 1, self._before[number], self._changes[number], whole=self._whole
        )

    def commit(self) -> None:
        """As Spark does, which makes the folder again if somebody has removed it. The watermark goes on by each row."""
        path = self._folder / "commits" / str(self._number)
        path.parent.mkdir(parents=True, exist_ok=True)
        ids = {OPERATOR: [[self._ids[number]] for number in range(PARTITIONS)]}
        rows = sum(len(change["rows"]) for change in self._changes.values())
        told = {"nextBatchWatermarkMs": self._watermark_ms + rows, "stateUniqueIds": ids}
        path.write_text("v2\n" + json.dumps(told))

    def _partition(self, number: int) -> Partition:
        return Partition(self._folder / STATE / OPERATOR / str(number))


def _watermark_of(entry: Path) -> int:
    return int(json.loads(entry.read_text().splitlines()[1])["batchWatermarkMs"])


def _rows_of(stream: Stream) -> Iterator[Row]:
    """The rows of the planned range, as Spark's own source of files finds them in its log."""
    if stream.end is None:
        return
    start, end = -1 if stream.start is None else _place(stream.start), _place(stream.end)
    for number in range(start + 1, end + 1):
        for line in stream.log[str(number)].splitlines()[1:]:
            file = Path(json.loads(line)["path"].removeprefix("file://"))
            yield from map(json.loads, file.read_text().splitlines())


def _place(offset: str) -> int:
    return int(json.loads(offset)["logOffset"])
