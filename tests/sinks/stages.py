"""Stages as the runtime leaves them, made by hand."""

from __future__ import annotations

import json
from pathlib import Path

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks import Sink

KEY = BatchKey("live", 7)


def folder_of(sink: Sink, epoch: int, key: BatchKey = KEY) -> Path:
    return Path(sink.stage(key, epoch).arguments["path"].removeprefix("file://"))


def write_stage(
    sink: Sink, epoch: int, *, key: BatchKey = KEY, rows: int = 3, files: int = 1, complete: bool = True
) -> Path:
    """A stage whose rows say which attempt wrote them."""
    folder = folder_of(sink, epoch, key)
    folder.mkdir(parents=True)
    listed = {}
    for number in range(files):
        path = folder / f"part-{number:05}-{epoch}.json"
        path.write_text("".join(json.dumps({"id": row, "epoch": epoch}) + "\n" for row in range(rows)))
        listed[path.name] = path.stat().st_size
    if complete:
        result = {"batchId": key.id, "epoch": epoch, "numOutputRows": rows * files}
        lines = [{"result": result}, *({"file": name, "bytes": size} for name, size in listed.items())]
        (folder / "_manifest").mkdir()
        (folder / "_manifest" / "part-00000.txt").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
