"""A stateful pipeline on real Spark: counts of orders by a key, and who made them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.engines.code import resolve_code
from airflow_provider_microbatch.engines.spark_submit import SparkSubmitEngine
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.summary import BatchSummary, RunSummary
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.stores.location import open_store
from tests.execution.world import run_identity

COUNTS = """
def transform(batch):
    return batch.sources["orders"].groupBy("id").count()
"""

CONF = {"spark.sql.shuffle.partitions": "2"}


class StatefulWorld:
    """One stateful pipeline below ``root``."""

    def __init__(
        self, root: Path, transform: str = COUNTS, *, schema: str = "id long", mode: str = "update", **more: Any
    ) -> None:
        self.root = root
        self.transform = transform
        self.schema = schema
        self.sources = ("orders",)
        self.options: dict[str, Any] = {"output_mode": mode, "conf": CONF, **more}
        self.engine = SparkSubmitEngine(conf={"spark.ui.enabled": "false"}, grace_seconds=5)
        self.clock = 1_700_000_000_000

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline(
            "orders",
            checkpoint=str(self.root / "checkpoint"),
            sources={
                name: FileSource(str(self._landing(name)), format="json", schema=self.schema) for name in self.sources
            },
            sink=FileSink(str(self.root / "lake"), format="json"),
            transform="orders_job.py:transform",
            stateful=True,
            **self.options,
        )

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

    def code(self) -> Any:
        bundle = self.root / "bundle"
        bundle.mkdir(exist_ok=True)
        (bundle / "orders_job.py").write_text(self.transform)
        return resolve_code("orders_job.py:transform", base=bundle)

    def run(self, number: int, **identity: int) -> BatchSummary | None:
        """The task run ``number``, to its end, by a real spark-submit."""
        code, called = self.code()
        run = run_identity(number, **identity)
        summary = self.execution.run(run=run, engine=self.engine, code=code, transform=called)
        assert not isinstance(summary, RunSummary)
        return summary

    def table(self) -> dict[int, list[Any]]:
        """Rows by batch, sorted."""
        found: dict[int, list[Any]] = {}
        for folder in sorted((self.root / "lake").glob("lane=live/batch_id=*")):
            rows = [
                json.loads(line) for path in sorted(folder.glob("*.json")) for line in path.read_text().splitlines()
            ]
            found[int(folder.name.partition("=")[2])] = sorted(rows, key=json.dumps)
        return found
