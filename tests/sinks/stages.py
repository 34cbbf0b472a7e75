"""Stages as the runtime leaves them, made by hand."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.sinks import ExpectedBatch, OpenSink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.support import shadow

CHECKPOINT = "11111111-2222-3333-4444-555555555555"
KEY = BatchKey("live", 7)


class _NothingKnown(KnownTables):
    def put(self, location: str, table_id: str) -> None:
        """It stays so."""


NOTHING_KNOWN = _NothingKnown(PosixStore("/nowhere"))
"""Of a checkpoint that has no id of a table on record."""


def batch_of(key: BatchKey = KEY, **changes: str) -> BatchIdentity:
    """The batch as one checkpoint has planned it; another one's or another plan's by ``changes``."""
    own = BatchIdentity(
        checkpoint=CHECKPOINT, pipeline="orders", key=key, digest="d1", location="/checkpoints/orders"
    )  # fmt: skip
    return BatchIdentity.from_dict({**own.to_dict(), **changes})


def expect(key: BatchKey = KEY, **changes: str) -> ExpectedBatch:
    """As its checkpoint asks for it."""
    return ExpectedBatch(identity=batch_of(key, **changes), tables=NOTHING_KNOWN)


def make_ready(sink: FileSink) -> None:
    """As before the first attempt of a checkpoint."""
    sink.make_ready(KnownTables(PosixStore(f"{sink.root}.known")), is_there=lambda: True)


BATCH = batch_of()
EXPECTED = expect()


def folder_of(sink: OpenSink, epoch: int, batch: BatchIdentity = BATCH) -> Path:
    """The stage's folder; of one in a bucket, where its files are written before they are sent."""
    return shadow.local(sink.stage(batch, epoch).arguments["path"])


def write_stage(
    sink: OpenSink,
    epoch: int,
    *,
    batch: BatchIdentity = BATCH,
    rows: int = 3,
    files: int = 1,
    below: Sequence[str] = (".",),
    complete: bool = True,
    frame: str | None = None,
) -> Path:
    """A stage whose rows say which attempt wrote them.

    :param below: folders of the stage, each of which gets so many files of so many rows.
    :param frame: of several sinks, the name of the one whose frame it is.
    """
    folder = folder_of(sink, epoch, batch)
    folder.mkdir(parents=True)
    listed = {}
    for part, number in itertools.product(below, range(files)):
        path = folder / part / f"part-{number:05}-{epoch}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({"id": row, "epoch": epoch}) + "\n" for row in range(rows)))
        listed[path.relative_to(folder).as_posix()] = path.stat().st_size
    if complete:
        result = {"batchId": batch.key.id, "epoch": epoch, "numOutputRows": rows * files * len(below)}
        result |= {"identity": batch.to_dict()} if batch.checkpoint else {}
        result |= {} if frame is None else {"sink": frame}
        lines = [{"result": result}, *({"file": name, "bytes": size} for name, size in listed.items())]
        (folder / "_manifest").mkdir()
        (folder / "_manifest" / "part-00000.txt").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
