"""An engine for tests of the state machine: runs a job in this process, without Spark, on JSON lines.

It reads the very files of the job and leaves a stage as the runtime does, so that real sources, sinks and logs are
under test. Faults are injected by hooks at named points.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from acme_microbatch.counter_reader import numbers

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.execution.engine import Code, EngineState, Handle
from airflow_provider_microbatch.runtime.checks import DEAD_LETTER, DROP
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.files import joined, told
from airflow_provider_microbatch.runtime.job import Job, Subtask
from airflow_provider_microbatch.runtime.polling import revived
from airflow_provider_microbatch.runtime.subtasks import Done, run_subtasks
from tests.support import channel_reader
from tests.support.stage_parts import write_part

Rows = list[dict[str, Any]]

COUNTER = "acme_microbatch.counter_reader:read"
CHANNELS = "airflow_provider_microbatch.runtime.channels:read"
POLLED = "airflow_provider_microbatch.runtime.polling:read"


def local(path: str) -> Path:
    """The local path of a plain path or ``file:`` URL."""
    return Path(urlsplit(path).path if path.startswith("file:") else path)


def rows_of(path: Path) -> Rows:
    """The rows of a file."""
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return [dict(row) for row in parquet.ParquetFile(path).read().to_pylist()]
    return [json.loads(line) for line in path.read_text().splitlines()]


class InlineEngine:
    """:param transform: rows of all sources → rows out, to each of several sinks.
    :param before_stage: called with the job before anything is written; raise here to crash before the stage.
    :param after_stage: called with the job when the stage is complete; raise here to crash between stage and publish.
    :param before_subtask: called with each subtask before it is run; raise here to crash between two.
    :param told: what the runtime tells beside, in its result.
    :param refuse: by row of the result, ``drop`` or ``dead_letter``; None for one that the tables get. Of a job with
        dead letters these are the rows as they are.

    ``rows_read`` counts the rows that were read, by all jobs. Of what is to be forgotten it knows ``id = 3``.
    """

    name = "inline"

    def __init__(
        self,
        *,
        transform: Callable[[dict[str, Rows]], Rows] | None = None,
        before_stage: Callable[[Job], None] = lambda job: None,
        after_stage: Callable[[Job], None] = lambda job: None,
        before_subtask: Callable[[Subtask], None] = lambda subtask: None,
        told: Mapping[str, Any] | None = None,
        refuse: Callable[[Mapping[str, Any]], str | None] = lambda row: None,
    ) -> None:
        self.transform = transform or (lambda sources: [row for rows in sources.values() for row in rows])
        self.before_stage = before_stage
        self.after_stage = after_stage
        self.before_subtask = before_subtask
        self.refuse = refuse
        self.rows_read = 0
        self.told = dict(told or {})
        self.jobs: list[Job] = []
        self.cancelled: list[str] = []
        self._failures: dict[str, EngineError] = {}

    def handle(self, *, pipeline: str, key: BatchKey, epoch: int) -> Handle:
        return {"engine": self.name, "tag": uuid.uuid4().hex}

    def start(self, handle: Handle, job: Job, code: Code) -> None:
        self.jobs.append(job)
        self.before_stage(job)
        try:
            if job.subtasks:
                run = lambda subtask: self._run(job.alone(subtask), subtask)  # noqa: E731
                result, listed = run_subtasks(job, run, load=lambda _: joined)
                lines = [json.loads(line) for line in listed]
                self._write(local(job.stage.report) / "_manifest" / "part-0.txt", [{"result": result}, *lines])
            else:
                self._run(job)
        except BatchFailure as failure:
            self._write(local(job.stage.report) / "_error" / "part-0.txt", [failure.report()])
            self._failures[handle["tag"]] = EngineError("spark-submit ended with 1")
            return
        self.after_stage(job)

    def _run(self, job: Job, subtask: Subtask | None = None) -> Done:
        if subtask is not None:
            self.before_subtask(subtask)
        sources, read_as = {}, {}
        for name, read in job.sources.items():
            if read.reader == COUNTER:
                found = numbers(read.arguments)
                sources[name], read_as[name] = [{"id": number} for number in found], {"end": found.stop - 1}
            elif read.reader == POLLED:
                polled = revived(read.arguments).read(read.arguments["start"], read.arguments["end"])
                sources[name], read_as[name] = [{**row} for row in polled if isinstance(row, Mapping)], {}
            elif read.reader == CHANNELS:
                sources[name], read_as[name] = channel_reader.read(read.arguments)
            else:
                paths = [path for group in read.arguments["groups"] for path in group["paths"]]
                sources[name], read_as[name] = self._rows(paths), told(read.arguments)
        try:
            rows = self.transform(sources)
        except Exception as error:
            raise BatchFailure("transform", str(error), traceback=f"Traceback: {error!r}") from error
        forgotten = {int(one.condition.removeprefix("id = ")) for one in job.checks.forgotten} if job.checks else set()
        rows = [row for row in rows if row.get("id") not in forgotten]
        verdicts = [self.refuse(row) for row in rows]
        letters = [row for row, verdict in zip(rows, verdicts, strict=True) if verdict == DEAD_LETTER]
        rows = [row for row, verdict in zip(rows, verdicts, strict=True) if verdict is None]
        part = "part-0" if subtask is None else f"part-{subtask.name}-{job.epoch}"
        listed = {
            local(stage.arguments["path"]): write_part(
                local(stage.arguments["path"]),
                stage.writer,
                stage.arguments,
                part,
                rows if name in job.tables else letters,
            )
            for name, stage in job.stages.items()
        }
        counted = {name: len(found) for name, found in sources.items()}
        self.rows_read += sum(counted.values())
        result = {
            "numInputRows": counted,
            "numOutputRows": len(rows) * len(job.tables),
            **({"numDeadLetters": len(letters), "numDroppedRows": verdicts.count(DROP)} if job.checks else {}),
            **({"numOutputRowsBySink": dict.fromkeys(job.stages, len(rows))} if len(job.tables) > 1 else {}),
            "durationMs": {"total": 1},
            "batchId": job.batch_id,
            "epoch": job.epoch,
            "read": read_as,
            "identity": dict(job.identity),
            **self.told,
        }
        if subtask is not None:
            result["subtask"] = {"name": subtask.name, "split": subtask.split, "madeOf": subtask.made_of}
        for stage, line in listed.items():
            self._write(stage / "_manifest" / "part-0.txt", [{"result": result}, line])
        return result, [json.dumps(next(iter(listed.values())))]

    def result(self, handle: Handle) -> None:
        if handle["tag"] in self._failures:
            raise self._failures[handle["tag"]]

    def poll(self, handle: Handle) -> EngineState:
        return EngineState.UNKNOWN

    def cancel(self, handle: Handle) -> bool:
        self.cancelled.append(handle["tag"])
        return False

    @staticmethod
    def _rows(paths: list[str]) -> Rows:
        return [row for path in paths for row in rows_of(local(path))]

    @staticmethod
    def _write(path: Path, rows: Rows) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
