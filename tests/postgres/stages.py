"""Stages of a PostgreSQL sink as the runtime leaves them, made by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.sinks import OpenSink
from tests.sinks.stages import BATCH, folder_of

Cells = Sequence[str | None]


def write_lines(
    sink: OpenSink,
    epoch: int,
    columns: Mapping[str, str],
    lines: Sequence[Cells],
    *,
    batch: BatchIdentity = BATCH,
    files: int = 1,
    complete: bool = True,
) -> Path:
    """:param columns: name → type of Spark.
    :param lines: the text of each cell as COPY has it, None for null.
    """
    folder = folder_of(sink, epoch, batch)
    folder.mkdir(parents=True)
    listed = {}
    for number in range(files):
        path = folder / f"part-{number:05}-{epoch}.txt"
        texts = ("\t".join("\\N" if cell is None else cell for cell in line) + "\n" for line in lines[number::files])
        path.write_text("".join(texts))
        listed[path.name] = path.stat().st_size
    (folder / "_schema").mkdir()
    (folder / "_schema" / "part-00000.txt").write_text(json.dumps({"columns": [*map(list, columns.items())]}) + "\n")
    if complete:
        result = {"batchId": batch.key.id, "epoch": epoch, "numOutputRows": len(lines)}
        result |= {"identity": batch.to_dict()} if batch.checkpoint else {}
        told = [{"result": result}, *({"file": name, "bytes": size} for name, size in listed.items())]
        (folder / "_manifest").mkdir()
        (folder / "_manifest" / "part-00000.txt").write_text("".join(json.dumps(line) + "\n" for line in told))
    return folder


def write_stage(
    sink: OpenSink, epoch: int, *, batch: BatchIdentity = BATCH, rows: int = 3, files: int = 1, complete: bool = True
) -> Path:
    """A stage whose rows say which attempt wrote them."""
    lines = [(str(row), str(epoch)) for _ in range(files) for row in range(rows)]
    return write_lines(
        sink, epoch, {"id": "bigint", "epoch": "int"}, lines, batch=batch, files=files, complete=complete
    )
