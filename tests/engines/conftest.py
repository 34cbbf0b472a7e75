"""A real spark-submit by way of a real Airflow connection, and hand-made jobs for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.engines import packaging, processes
from airflow_provider_microbatch.engines.code import resolve_code
from airflow_provider_microbatch.engines.spark_submit import SparkSubmitEngine
from airflow_provider_microbatch.execution.engine import Code, Engine
from airflow_provider_microbatch.runtime.job import Job, Read
from airflow_provider_microbatch.sinks.file import FileSink
from tests.sinks.stages import batch_of, expect

CONNECTION = json.dumps({"conn_type": "spark", "host": "local[1]"})


@pytest.fixture
def spark_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", CONNECTION)


class World:
    """A bundle folder with the user's code, a landing folder and a table; and an engine that leaves nothing behind."""

    def __init__(self, folder: Path, *, engine: Engine | None = None) -> None:
        self.bundle = folder / "bundle"
        self.bundle.mkdir()
        self.landing = folder / "landing"
        self.landing.mkdir()
        self.sink = FileSink(str(folder / "lake"), format="json")
        self.engine = engine or SparkSubmitEngine(conf={"spark.ui.enabled": "false"}, grace_seconds=5)
        self.key = BatchKey("live", 0)
        self.batch = batch_of(self.key)
        self.expected = expect(self.key)
        self.tags: list[str] = []

    def land(self, name: str, rows: list[dict[str, object]]) -> str:
        path = self.landing / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    def transform(self, source: str, *, name: str = "orders_job.py") -> str:
        (self.bundle / name).write_text(source)
        return f"{name}:transform"

    def job(self, transform: str | None, paths: list[str], *, epoch: int = 1, **changes: object) -> tuple[Job, Code]:
        code, called = resolve_code(transform, base=self.bundle)
        arguments = {
            "name": "orders",
            "format": "json",
            "schema": "id long, note string",
            "options": {},
            "groups": [{"paths": paths, "base_path": str(self.landing)}],
        }
        job = Job(
            pipeline="orders",
            lane="live",
            batch_id=0,
            epoch=epoch,
            batch_timestamp_ms=1_700_000_000_123,
            watermark_ms=0,
            sources={
                "orders": Read(reader="airflow_provider_microbatch.runtime.files:read", arguments=arguments),
            },
            stages=self.sink.stages_by_name(self.batch, epoch),
            transform=called,
            identity=self.batch.to_dict(),
            **changes,  # type: ignore[arg-type]
        )
        return job, code

    def start(self, job: Job, code: Code) -> dict[str, Any]:
        handle = dict(self.engine.handle(pipeline="orders", key=self.key, epoch=job.epoch))
        self.tags.append(str(handle["tag"]))
        self.engine.start(handle, job, code)
        return handle

    def close(self) -> None:
        for tag in self.tags:
            processes.end_all(tag, grace=1)
            packaging.unpack(tag)


@pytest.fixture
def world(tmp_path: Path, spark_default: None) -> Iterator[World]:
    made = World(tmp_path)
    try:
        yield made
    finally:
        made.close()
