"""A stateful pipeline on real Spark: counts of orders by a key, and who made them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.engines.code import resolve_code
from airflow_provider_microbatch.engines.spark_submit import SparkSubmitEngine
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.execution.engine import Code, Engine, Handle
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.summary import BatchSummary, RunSummary
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.job import Flow, Job, Transform
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources import Source
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.stores.location import open_store
from tests.execution.world import run_identity
from tests.support.inline_engine import InlineEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNTS = "tests.state.transforms:counts"

CONF = {"spark.sql.shuffle.partitions": "2"}


class SessionEngine(InlineEngine):
    """Runs a job by the runtime itself, in a session of this process."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__()
        self._spark = spark

    def start(self, handle: Handle, job: Job, code: Code) -> None:
        """Run it to its end."""
        try:
            run_job(self._spark.newSession(), Job.from_json(job.to_json()))
        except BatchFailure as failure:
            raise EngineError(failure.error) from failure

    def result(self, handle: Handle) -> None:
        """It has ended."""

    @contextmanager
    def own_session(self, name: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
        """In the place of one that a command starts for itself."""
        session = self._spark.newSession()
        for setting, value in settings.items():
            session.conf.set(setting, value)
        yield session


class StatefulWorld:
    """One stateful pipeline below ``root``."""

    def __init__(
        self,
        root: Path,
        transform: str = COUNTS,
        *,
        schema: str = "id long",
        mode: str = "update",
        engine: Engine | None = None,
        **more: Any,
    ) -> None:
        self.root = root
        self.transform = transform
        self.schema = schema
        self.sources: tuple[str, ...] = ("orders",)
        self.options: dict[str, Any] = {"output_mode": mode, "conf": CONF, **more}
        self.engine = engine or SparkSubmitEngine(conf={"spark.ui.enabled": "false"}, grace_seconds=5)
        self.clock = 1_700_000_000_000
        self.lake = "lake"

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline(
            "orders",
            checkpoint=str(self.root / "checkpoint"),
            sources={name: self.source(name) for name in self.sources},
            sink=FileSink(str(self.root / self.lake), format="json"),
            transform="orders_job.py:transform",
            **{"stateful": True, **self.options},
        )

    def source(self, name: str) -> Source:
        """The definition of a source."""
        return FileSource(str(self._landing(name)), format="json", schema=self.schema)

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(open_store(str(self.root / "checkpoint")), sources=list(self.sources))

    @property
    def execution(self) -> Execution:
        return Execution(pipeline=self.pipeline, checkpoint=self.checkpoint, clock_ms=self._tick)

    def _tick(self) -> int:
        self.clock += 1
        return self.clock

    def _landing(self, source: str) -> Path:
        folder = self.root / "landing" / source
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def land(self, name: str, *rows: dict[str, object] | int, source: str = "orders") -> None:
        """One file; a number is the row of that id."""
        values = [{"id": row} if isinstance(row, int) else row for row in rows]
        path = self._landing(source) / f"{name}.json"
        path.write_text("".join(json.dumps(value) + "\n" for value in values))

    def code(self) -> tuple[Code, Transform | Flow | None]:
        """Of a module of these tests, or of a text that is written into a bundle."""
        if "\n" not in self.transform:
            module, _, function = self.transform.partition(":")
            return Code(transform=self.transform, code_hash=self.transform), Transform(module=module, function=function)
        bundle = self.root / "bundle"
        bundle.mkdir(exist_ok=True)
        (bundle / "orders_job.py").write_text(self.transform)
        return resolve_code("orders_job.py:transform", base=bundle)

    def run(self, number: int, **identity: int) -> BatchSummary | None:
        """The task run ``number``, to its end, by the world's engine."""
        code, called = self.code()
        run = run_identity(number, **identity)
        summary = self.execution.run(run=run, engine=self.engine, code=code, transform=called)
        assert not isinstance(summary, RunSummary)
        return summary

    def table(self, lane: str = LIVE) -> dict[int, list[Any]]:
        """Rows of a lane by batch, sorted."""
        found: dict[int, list[Any]] = {}
        for folder in sorted(
            (self.root / self.lake).glob(f"lane={lane}/batch_id=*"), key=lambda path: (len(path.name), path)
        ):
            rows = [
                json.loads(line) for path in sorted(folder.glob("*.json")) for line in path.read_text().splitlines()
            ]
            found[int(folder.name.partition("=")[2])] = sorted(rows, key=json.dumps)
        return found
