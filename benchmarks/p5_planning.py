"""P5: plan over a million files seen and a thousand new, beside scandir + stat, and beside Spark's file source.

Each side is a process of its own that tells the seconds of its work, imports left out. Spark's side is the time from
the start of an availableNow query to its end, without the batch itself (``addBatch``); it runs once, and its source log
is ours, handed over.

The last row is a plan of the same tree by an ordered source, beside one by a source that lists it all.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from dataclasses import replace
from itertools import count
from pathlib import Path

from benchmarks.harness import Row, paired, python_result, python_seconds
from benchmarks.seen_files import hand_to_spark, make_seen

RUNS = 5
FILES = int(os.environ.get("P5_FILES", 1_000_000))
NEW = 1_000

OURS = """
import json, resource, sys, time
from airflow_provider_microbatch import FileSink, FileSource, Pipeline
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import CommitEntry, RunIdentity
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.execution.execution import Execution
home, landing, number, new, ordered = sys.argv[1:]
pipeline = Pipeline(
    "bench", checkpoint=f"{home}/checkpoint", transform="job.py:transform", sink=FileSink(f"{home}/lake"),
    sources={"orders": FileSource(landing, format="json", schema="id long", ordered=ordered == "ordered")},
)
checkpoint = Checkpoint(open_store(pipeline.checkpoint))
run = RunIdentity(dag_id="bench", run_id=number, task_id="t", ti_id=number, try_number=1, clear_number=0)
started = time.perf_counter()
planned = Execution(pipeline=pipeline, checkpoint=checkpoint).plan(run)
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
files = 0
if planned is not None:
    source = checkpoint.source_log("orders")
    offset = json.loads(planned.entry.ends["orders"])["logOffset"]
    files = len(source.get(str(offset)).splitlines()) - 1
    checkpoint.commit_log.add(planned.key.id, CommitEntry())
assert files == int(new), files
print(json.dumps({"seconds": seconds, "megabytes": peak}))
"""
"""Plans a batch of the files that are new below ``landing``, as run ``number``, and says that it is committed."""

PEER = """
import os, sys, time
def walk(folder):
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                walk(entry.path)
            else:
                os.stat(entry.path)
started = time.perf_counter()
walk(sys.argv[1])
print(time.perf_counter() - started)
"""

SPARK = """
import sys, time
from pyspark.sql import SparkSession
landing, checkpoint = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.memory", "4g")
    .getOrCreate()
)
read = []
query = spark.readStream.schema("id long").json(landing).writeStream
query = query.foreachBatch(lambda frame, batch_id: read.append(frame.count()))
query = query.option("checkpointLocation", checkpoint).trigger(availableNow=True)
started = time.perf_counter()
query = query.start()
query.awaitTermination()
seconds = time.perf_counter() - started
batches = [one.durationMs.get("addBatch", 0) / 1000 for one in query.recentProgress]
assert sum(read) == 1000, read
spark.stop()
print(seconds - sum(batches))
"""


def measure() -> list[Row]:
    """The rows of the table."""
    what = f"plan, {FILES:,} files seen and {NEW:,} new / "
    listing = Row(name="P5", what=f"{what}scandir + stat of the tree", reach=1.3)
    megabytes: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        landing = home / "landing"
        log_end = make_seen(home, FILES)
        numbers = count()

        def plan(how: str) -> float:
            number = next(numbers)
            land(landing, number)
            result = python_result(OURS, folder, str(landing), str(number), str(NEW), how)
            megabytes.append(result["megabytes"])
            return float(result["seconds"])

        def ours() -> float:
            return plan("unordered")

        paired(listing, ours=ours, peer=lambda: python_seconds(PEER, str(landing)), runs=RUNS)
        listing = replace(listing, note=f"the planning process takes {statistics.median(megabytes):.0f} MB in all")
        ordered = Row(name="P5o", what=f"ordered {what}unordered", reach=0.1)
        for _ in range(2):
            plan("ordered")  # these list all: the start of a listing is known from two before it
        paired(ordered, ours=lambda: plan("ordered"), peer=ours, runs=RUNS)
        spark = Row(name="P5s", what=f"{what}Spark's file source doing the same", reach=0.1)
        checkpoint = hand_to_spark(home, log_end)
        for number in range(next(numbers)):
            shutil.rmtree(new_folder(landing, number))
        land(landing, next(numbers))
        spark.peer.append(python_seconds(SPARK, str(landing), str(checkpoint)))
        spark.ours.append(statistics.median(listing.ours))
    return [listing, spark, ordered]


def land(landing: Path, number: int) -> None:
    """A folder of new files."""
    folder = new_folder(landing, number)
    folder.mkdir()
    for part in range(NEW):
        (folder / f"part-{part}.json").write_text('{"id": 1}\n')


def new_folder(landing: Path, number: int) -> Path:
    """Where they land: in folders that sort after all others, one after the other."""
    return landing / f"date=new{number:04}"
