"""P1: nothing new. CPU of one poll of the sensor's trigger, beside CPU of spark-submit of an availableNow query.

Both look at the same files with a checkpoint that has all of them. The triggerer is a process that runs anyway, so its
start and imports do not count; it asks as ``NewDataTrigger.run`` does, in a thread, with everything opened anew.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from benchmarks.harness import Row, cpu_of_submit, paired, python_seconds
from benchmarks.seen_files import hand_to_spark, make_seen

RUNS = 3
FILES = int(os.environ.get("P1_FILES", 1_000))

POLLS = """
import asyncio, sys, time
from airflow_provider_microbatch import FileSink, FileSource, Pipeline
from airflow_provider_microbatch.triggers.new_data import decide
home, clock = sys.argv[1], getattr(time, sys.argv[2])
pipeline = Pipeline(
    "bench", checkpoint=f"{home}/checkpoint", transform="job.py:transform", sink=FileSink(f"{home}/lake"),
    sources={"orders": FileSource(f"{home}/landing", format="json", schema="id long")},
)
async def poll():
    decision = await asyncio.to_thread(decide, pipeline, None, backfill=False)
    assert not decision.fire, decision
async def polls(count):
    for _ in range(count):
        await poll()
asyncio.run(polls(3))
started = clock()
asyncio.run(polls(20))
print((clock() - started) / 20)
"""

SPARK = """
import sys
from pyspark.sql import SparkSession
landing, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
query = spark.readStream.schema("id long").json(landing).writeStream.foreachBatch(lambda frame, batch_id: None)
query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


def measure() -> Row:
    """The row of the table."""
    row = Row(name="P1", what=f"CPU of a poll, {FILES:,} files, none new / of spark-submit of availableNow", reach=0.01)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        checkpoint = hand_to_spark(home, make_seen(home, FILES))
        script = home / "query.py"
        script.write_text(SPARK)
        return paired(
            row,
            ours=lambda: python_seconds(POLLS, folder, "process_time", AIRFLOW_HOME=f"{home}/airflow"),
            peer=lambda: cpu_of_submit(script, [f"{home}/landing", str(checkpoint)]),
            runs=RUNS,
        )
