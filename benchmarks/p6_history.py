"""P6: plan + commit with a million batches of history, beside the same with ten.

Each batch is planned and committed as a new process would: nothing is kept in memory from one to the next. So many are
measured in a row that what is done only now and then (a hint, a segment of the index) is in the figure. The batch
itself is not: there is no Spark, no attempt, and an output without rows is published between the two.

The old entries are hard links to one, since nobody reads them; the newest, the hints and the index are real.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from hashlib import blake2b
from itertools import count
from pathlib import Path

from airflow_provider_microbatch import FileSink, FileSource, Pipeline
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import CommitEntry, OffsetEntry, RunIdentity
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.runtime.layout import MANIFEST
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, SinkContext
from airflow_provider_microbatch.sources.file.index import Span, build, fingerprints
from airflow_provider_microbatch.sources.file.listing import FoundFile
from airflow_provider_microbatch.sources.file.log import SourceLog, encode, offset_of
from airflow_provider_microbatch.stores.location import open_store
from benchmarks.harness import Row, paired

RUNS = 9
HISTORY = int(os.environ.get("P6_BATCHES", 1_000_000))
BATCHES = 64
REAL = 64
"""The newest so many entries of the history are written as a plan and a commit write them."""

LINKS = 50_000
"""ext4 allows 65,000 names of one file."""


def measure() -> Row:
    """The row of the table."""
    row = Row(
        name="P6",
        what=f"plan + commit of {BATCHES} batches after {HISTORY:,} / after 10",
        reach=1.2,
    )
    with tempfile.TemporaryDirectory() as folder:
        old = make_history(Path(folder, "old"), HISTORY)
        numbers = count()
        return paired(
            row,
            ours=lambda: plan_and_commit(old),
            peer=lambda: plan_and_commit(make_history(Path(folder, f"young{next(numbers)}"), 10)),
            runs=RUNS,
        )


def plan_and_commit(pipeline: Pipeline) -> float:
    """Seconds for some batches of one new file each."""
    seconds = 0.0
    landing = Path(pipeline.sources["orders"].location())
    for _ in range(BATCHES):
        file = landing / f"{time.time_ns()}.json"
        file.write_text('{"id": 1}\n')
        started = time.perf_counter()
        execution = Execution(pipeline=pipeline, checkpoint=Checkpoint(open_store(pipeline.checkpoint)))
        run = RunIdentity(dag_id="bench", run_id=file.name, task_id="t", ti_id=file.name)
        planned = execution.plan(run)
        seconds += time.perf_counter() - started
        assert planned is not None
        published = publish_nothing(pipeline, planned.identity)
        started = time.perf_counter()
        execution.commit(key=planned.key, manifest=published, run=run)
        seconds += time.perf_counter() - started
        file.unlink()
    return seconds


def publish_nothing(pipeline: Pipeline, batch: BatchIdentity) -> Manifest:
    """Publish a batch without rows: a commit asks whether it is there."""
    sink = pipeline.sink.open(SinkContext())
    stage = Path(sink.stage(batch, 1).arguments["path"].removeprefix("file://"))
    manifest = stage / MANIFEST
    manifest.mkdir(parents=True)
    result = {"batchId": batch.key.id, "epoch": 1, "identity": batch.to_dict()}
    (manifest / "part-00000.txt").write_text(json.dumps({"result": result}) + "\n")
    tables = Checkpoint(open_store(pipeline.checkpoint)).tables
    return sink.publish(ExpectedBatch(identity=batch, tables=tables), 1)


def make_history(home: Path, batches: int) -> Pipeline:
    """A pipeline whose checkpoint has ``batches`` committed batches of one file each; the files are gone."""
    landing = home / "landing"
    landing.mkdir(parents=True)
    pipeline = Pipeline(
        "bench",
        checkpoint=f"{home}/checkpoint",
        transform="job.py:transform",
        sink=FileSink(f"{home}/lake"),
        sources={"orders": FileSource(str(landing), format="json", schema="id long")},
    )
    checkpoint = Checkpoint(open_store(pipeline.checkpoint))
    checkpoint.claim(pipeline="bench", sources=["orders"], format="v2")
    source_log = SourceLog(checkpoint.source_log("orders"))

    def add(number: int) -> None:
        source_log.add(number, [FoundFile(f"{landing}/{number}", 10, number)])
        offset, before = offset_of(number), offset_of(number - 1)
        entry = OffsetEntry(ends={"orders": offset}, starts={"orders": before}, batch_timestamp_ms=number)
        checkpoint.offset_log.add(number, entry)
        checkpoint.commit_log.add(number, CommitEntry())

    linked = max(0, batches - REAL)
    if linked:
        add(0)
        for folder in ("sources/orders", "offsets", "commits"):
            link_many(home / "checkpoint" / folder, linked)
        last = encode(0, [FoundFile(f"{landing}/0", 10, 0)])
        span = Span(0, linked - 1, linked - 1, blake2b(last, digest_size=16).digest())
        data = build(span, segments=(), prints=fingerprints(f"{landing}/{number}" for number in range(linked)))
        checkpoint.source_state("orders").put_if_absent(f"index/0-{linked - 1}", data)
    for number in range(linked, batches):
        add(number)
    return pipeline


def link_many(folder: Path, end: int) -> None:
    """Names 0 to ``end - 1`` of what is in ``0``."""
    data = (folder / "0").read_bytes()
    for begin in range(0, end, LINKS):
        first = folder / str(begin)
        first.write_bytes(data)
        for number in range(begin + 1, min(begin + LINKS, end)):
            os.link(first, folder / str(number))
