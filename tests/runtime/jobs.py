"""Hand-made jobs over a landing folder and a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.runtime.job import Job, Read, Transform
from airflow_provider_microbatch.sinks import OpenSink, Sink, SinkContext
from tests.sinks.stages import batch_of, expect

KEY = BatchKey("live", 0)
BATCH = batch_of(KEY)
EXPECTED = expect(KEY)
ROWS = [{"id": 1, "note": "a b"}, {"id": 2, "note": "50%/ü=?"}, {"id": 3, "note": "_c"}]


def land(folder: Path, rows: list[dict[str, Any]] = ROWS) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "orders.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def make_job(sink: Sink | OpenSink, function: str | None, paths: list[str], *, epoch: int = 1, **changes: Any) -> Job:
    arguments = {
        "name": "orders",
        "format": "json",
        "schema": changes.pop("schema", "id long, note string"),
        "options": {},
        "groups": [{"paths": paths, "base_path": None}] if paths else [],
    }
    read = Read(reader="airflow_provider_microbatch.runtime.files:read", arguments=arguments)
    given: dict[str, Any] = {
        "pipeline": "orders",
        "lane": KEY.lane,
        "batch_id": KEY.id,
        "epoch": epoch,
        "batch_timestamp_ms": 1_700_000_000_123,
        "watermark_ms": 0,
        "sources": {"orders": read},
        "stages": (sink if isinstance(sink, OpenSink) else sink.open(SinkContext())).stages_by_name(BATCH, epoch),
        "identity": BATCH.to_dict(),
        "transform": Transform(module="tests.runtime.shop", function=function) if function else None,
    }
    return Job(**{**given, **changes})
