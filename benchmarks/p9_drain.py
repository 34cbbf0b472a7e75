"""P9: a drain on the warm engine. Tiny batches beside as many mapped tasks that do nothing, and batches of seconds of
work beside one availableNow query with the same limits and format.

All sides are DAG runs, from the run's start to its end, so the scheduler's gaps between the slots are in them. The
empty mapped tasks run one at a time, as batches must. The query is a task with SparkSubmitOperator; its start of a JVM,
once, is in its time, as a user of it would see.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import count
from statistics import median

from benchmarks.harness import Row, paired
from benchmarks.p2_one_batch import SCHEMA, TRANSFORM, land
from benchmarks.p8_loop import EMPTY, SHORT_IDLE, rates
from benchmarks.scheduled import DEFAULT_IDLE, Scheduled, scheduled

PAIRS = int(os.environ.get("P9_PAIRS", 3))
SLOTS = int(os.environ.get("P9_SLOTS", 50))
TINY_RATE = 0.8

WORK_PAIRS = int(os.environ.get("P9_WORK_PAIRS", 3))
WORK_SLOTS = int(os.environ.get("P9_WORK_SLOTS", 10))
WORK_ROWS = int(os.environ.get("P9_WORK_ROWS", 160_000))
"""Rows in each of a batch's two files: about five seconds of the two cores this was last measured on."""
WORK_FILES = 2
WORK_RATE = 0.85

DRAIN = f"""
import os
from datetime import datetime
from airflow.sdk import DAG
from airflow_provider_microbatch import FileSink, FileSource, Pipeline
from airflow_provider_microbatch.operators.drain import drain
home = os.environ["BENCH_HOME"]
def pipeline(name, max_files):
    source = FileSource(f"{{home}}/{{name}}/landing", format="json", schema={SCHEMA!r}, max_files=max_files)
    return Pipeline(name, checkpoint=f"{{home}}/{{name}}/checkpoint", transform=f"job.py:{{name}}",
                    sink=FileSink(f"{{home}}/{{name}}/lake"), sources={{"orders": source}})
with DAG("drain_tiny", schedule=None, start_date=datetime(2026, 1, 1)):
    drain(pipeline("tiny", 1), slots={SLOTS}, conn_id="spark_connect_default")
with DAG("drain_work", schedule=None, start_date=datetime(2026, 1, 1)):
    drain(pipeline("work", {WORK_FILES}), slots={WORK_SLOTS}, conn_id="spark_connect_default")
"""

PEERS = f"""{EMPTY}
with DAG("empty_mapped", schedule=None, start_date=datetime(2026, 1, 1)):
    class Slot(Nothing):
        def __init__(self, *, slot, **kwargs):
            super().__init__(**kwargs)
    Slot.partial(task_id="slot", max_active_tis_per_dag=1, max_active_tis_per_dagrun=1).expand(
        slot=list(range({SLOTS}))
    )
"""

QUERY_DAG = f"""
import os
from datetime import datetime
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG
home = os.environ["BENCH_HOME"]
with DAG("query", schedule=None, start_date=datetime(2026, 1, 1)):
    SparkSubmitOperator(
        task_id="query", application=f"{{home}}/dags/query.py", application_args=[f"{{home}}/query", {SCHEMA!r}],
        conf={{"spark.ui.enabled": "false"}}, durable=False,
    )
"""

JOB = f"""{TRANSFORM}
tiny = transform
def heavy(rows):
    # Work that grows with the rows, and is the same for whoever asks for it.
    return rows.withColumn("work", F.expr("aggregate(sequence(1, 500), id, (sum, n) -> (sum * 31 + n) % 1000003)"))
def work(batch):
    return heavy(batch.sources["orders"])
"""

QUERY = f"""
import json, sys, time
from pyspark.sql import SparkSession
from job import heavy
home, schema = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
started = time.perf_counter()
rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", {WORK_FILES}).json(f"{{home}}/landing")
writer = heavy(rows).writeStream.format("parquet").option("checkpointLocation", f"{{home}}/checkpoint")
query = writer.trigger(availableNow=True).start(f"{{home}}/lake")
query.awaitTermination()
with open(f"{{home}}/progress.json", "w") as file:
    seconds = time.perf_counter() - started
    json.dump({{"seconds": seconds, "rows": [done["numInputRows"] for done in query.recentProgress]}}, file)
spark.stop()
"""


def measure() -> list[Row]:
    """The rows of the table."""
    return [*[_tiny(idle) for idle in (DEFAULT_IDLE, SHORT_IDLE)], _work()]


def _tiny(idle: float) -> Row:
    told = "default" if idle == DEFAULT_IDLE else f"{idle} s"
    row = Row(name="P9", what=f"drain of {SLOTS} tiny batches / {SLOTS} empty mapped tasks ({told} idle)",
              reach=1 / TINY_RATE)  # fmt: skip
    with scheduled(_DAGS, idle=idle) as through:

        def ours() -> float:
            return _drained(through, "tiny", slots=SLOTS, files=1, rows=100)

        paired(row, ours=ours, peer=lambda: through.run("empty_mapped"), runs=PAIRS)
    return replace(row, note=rates(row, TINY_RATE, ours=60.0 * SLOTS, peer=60.0 * SLOTS, unit="a minute"))


def _work() -> Row:
    row = Row(name="P9", what=f"drain of {WORK_SLOTS} batches of work / one availableNow query", reach=1 / WORK_RATE)
    inside: list[float] = []
    with scheduled(_DAGS) as through:
        numbers, folder = count(), through.home / "query"

        def ours() -> float:
            return _drained(through, "work", slots=WORK_SLOTS, files=WORK_FILES, rows=WORK_ROWS)

        def peer() -> float:
            for _ in range(WORK_SLOTS):
                land(folder / "landing", next(numbers), files=WORK_FILES, rows=WORK_ROWS)
            seconds, progress = through.run("query"), json.loads((folder / "progress.json").read_text())
            made = [rows for rows in progress["rows"] if rows]
            if made != [WORK_FILES * WORK_ROWS] * WORK_SLOTS:
                raise RuntimeError(f"the query's batches are {made}")
            inside.append(progress["seconds"])
            return seconds

        paired(row, ours=ours, peer=peer, runs=WORK_PAIRS)
    rows = float(WORK_SLOTS * WORK_FILES * WORK_ROWS)
    told = rates(row, WORK_RATE, ours=rows, peer=rows, unit="rows a second")
    return replace(row, note=f"{told}; the query itself, without its start: {median(inside[1:]):.1f} s")


def _drained(through: Scheduled, name: str, *, slots: int, files: int, rows: int) -> float:
    before = through.committed(name)
    for number in range(before, before + slots):
        land(through.home / name / "landing", number, files=files, rows=rows)
    seconds = through.run(f"drain_{name}")
    made = through.committed(name) - before
    if made != slots:
        raise RuntimeError(f"{made} batches were made by {slots} slots")
    return seconds


_DAGS = {"drain.py": DRAIN, "peers.py": PEERS, "query_dag.py": QUERY_DAG, "job.py": JOB, "query.py": QUERY}
