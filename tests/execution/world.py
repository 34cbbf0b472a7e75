"""A pipeline of real parts (POSIX store, file source, file sink) on the inline engine, with words for tests.

The fluent helper is OpenSearch's idea; the case that theirs lacks, new data between a failure and its retry, is the
reason for ours.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt, RunIdentity
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.execution.engine import Code
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.summary import BatchSummary, RunSummary
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks import Manifest
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.upkeep.janitor import Janitor
from airflow_provider_microbatch.upkeep.janitor_report import JanitorReport
from tests.support.inline_engine import InlineEngine
from tests.support.leases import expire_leases
from tests.support.whose import published, stages_of

CODE = Code(transform="jobs/orders.py:transform")
KEY = BatchKey(LIVE, 0)


class Killed(BaseException):
    """The process is gone."""


def run_identity(number: int, *, clear_number: int = 0, try_number: int = 1) -> RunIdentity:
    """The task run number ``number`` of a DAG."""
    return RunIdentity(
        dag_id="orders",
        run_id=f"run-{number}",
        task_id="micro_batch",
        ti_id=f"ti-{number}-{clear_number}-{try_number}",
        try_number=try_number,
        clear_number=clear_number,
    )


class World:
    """One pipeline below ``root``."""

    def __init__(self, root: Path, *, sources: tuple[str, ...] = ("orders",), **pipeline: Any) -> None:
        self.root = root
        self.lake = root / "lake"
        self.sources = {name: FileSource(str(self.landing(name)), format="json", schema="id long") for name in sources}
        self.options = {"transform": "jobs/orders.py:transform", **pipeline}
        self.clock = 1_700_000_000_000

    def landing(self, name: str = "orders") -> Path:
        folder = self.root / "landing" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def pipeline(self) -> Pipeline:
        options = {"name": "orders", "checkpoint": str(self.root / "checkpoint"), **self.options}
        name = options.pop("name")
        sink = options.pop("sink", FileSink(str(self.lake), format="json"))
        return Pipeline(name, sources=self.sources, sink=sink, **options)

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(open_store(self.pipeline.checkpoint), sources=list(self.sources))

    @property
    def execution(self) -> Execution:
        """A fresh one, as every process makes it."""
        return Execution(pipeline=self.pipeline, checkpoint=self.checkpoint, clock_ms=self._tick)

    def _tick(self) -> int:
        self.clock += 1
        return self.clock

    def land(self, *ids: int, source: str = "orders") -> Path:
        """One file with these ids."""
        path = self.landing(source) / f"{ids[0]:06d}.json"
        path.write_text("".join(json.dumps({"id": number}) + "\n" for number in ids))
        return path

    def run(self, number: int, engine: InlineEngine | None = None, **kwargs: Any) -> BatchSummary | None:
        """The task run ``number``, to its end."""
        run = run_identity(number, **{key: kwargs.pop(key) for key in ("clear_number", "try_number") if key in kwargs})
        summary = self.execution.run(run=run, engine=engine or InlineEngine(), code=CODE, transform=None, **kwargs)
        assert not isinstance(summary, RunSummary)
        return summary

    def staged(self, number: int = 0, *, run: RunIdentity | None = None) -> Attempt:
        """An attempt of task run ``number`` whose job has left a whole stage, and whose process died then."""
        run, engine = run or run_identity(number), InlineEngine()
        planned = self.execution.plan(run)
        assert planned is not None
        attempt = self.execution.open_attempt(key=planned.key, run=run, code=CODE, engine=engine)
        job = self.execution.job(attempt, None)
        self.execution.run_attempt(attempt=attempt, job=job, engine=engine, code=CODE)
        return attempt

    def expire_leases(self) -> None:
        """An hour passes, as far as the store's clock can tell."""
        expire_leases(self.root / "checkpoint")

    def janitor(self, engine: InlineEngine | None = None, **kwargs: Any) -> JanitorReport:
        """One run of the janitor, which has nothing but the checkpoint and an engine."""
        found = engine or InlineEngine()
        made = Janitor(
            checkpoint=Checkpoint(open_store(self.pipeline.checkpoint)),
            engine_of=lambda name: found if name == found.name else None,
            **kwargs,
        )
        return made.run()

    def table(self) -> dict[int, list[int]]:
        """Published ids by batch, as a reader that lists the table sees them."""
        found: dict[int, list[int]] = {}
        for folder in sorted(self.lake.glob("lane=live/batch_id=*")):
            rows = [
                json.loads(line) for path in sorted(folder.glob("*.json")) for line in path.read_text().splitlines()
            ]
            found[int(folder.name.partition("=")[2])] = sorted(row["id"] for row in rows)
        return found

    def stages(self) -> list[str]:
        """Attempts that still have a stage."""
        return [f"{key} attempt {epoch}" for key, epoch in stages_of(self.pipeline.sink, self.checkpoint)]

    def stage_folder(self, epoch: int = 1, *, key: BatchKey = KEY) -> Path:
        """Where an attempt of this checkpoint writes."""
        return Path(self.pipeline.sink.stage(self.place(key), epoch).report.removeprefix("file://"))

    def place(self, key: BatchKey = KEY) -> BatchIdentity:
        """The place of a batch of this checkpoint."""
        return BatchIdentity.at(key, checkpoint=self.checkpoint_id)

    @property
    def checkpoint_id(self) -> str:
        """By which its stages are known."""
        checkpoint, pipeline = self.checkpoint, self.pipeline
        return checkpoint.claim(
            pipeline=pipeline.name, sources=list(self.sources), format=pipeline.checkpoint_format
        ).query_id

    def published(self, key: BatchKey = KEY) -> Manifest | None:
        """What the table has of a batch, as the checkpoint asks for it."""
        return published(self.pipeline.sink, self.checkpoint, key)

    def files(self) -> dict[str, bytes]:
        """Everything below the checkpoint, to see that nothing was written."""
        root = Path(self.pipeline.checkpoint)
        return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
