"""Stages in a bucket as the runtime leaves them, put by another client than the one that is tested."""

from __future__ import annotations

import json

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.sinks import OpenSink
from tests.sinks.stages import BATCH
from tests.support import object_store


def place_of(sink: OpenSink, epoch: int, batch: BatchIdentity = BATCH) -> tuple[str, str]:
    """Bucket and prefix of a stage."""
    bucket, _, prefix = sink.stage(batch, epoch).arguments["path"].removeprefix("s3a://").partition("/")
    return bucket, prefix


def write_stage(
    sink: OpenSink, epoch: int, *, batch: BatchIdentity = BATCH, rows: int = 3, files: int = 1, complete: bool = True
) -> None:
    """A stage whose rows say which attempt wrote them."""
    bucket, prefix = place_of(sink, epoch, batch)
    s3, listed = object_store.client(), dict[str, int]()
    sink.begin(batch, epoch)
    for number in range(files):
        name, text = (
            f"part-{number:05}-{epoch}.json",
            "".join(json.dumps({"id": row, "epoch": epoch}) + "\n" for row in range(rows)),
        )
        s3.put_object(Bucket=bucket, Key=f"{prefix}/{name}", Body=text.encode())
        listed[name] = len(text.encode())
    if complete:
        result = {"batchId": batch.key.id, "epoch": epoch, "numOutputRows": rows * files}
        result |= {"identity": batch.to_dict()} if batch.checkpoint else {}
        lines = [{"result": result}, *({"file": name, "bytes": size} for name, size in listed.items())]
        body = "".join(json.dumps(line) + "\n" for line in lines).encode()
        s3.put_object(Bucket=bucket, Key=f"{prefix}/_manifest/part-00000.txt", Body=body)
