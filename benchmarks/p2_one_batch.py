"""P2: one batch as our task, beside the same read-transform-write hand-written and submitted by SparkSubmitOperator.

Both sides are a Python process that imports its operator and calls ``execute``: the time a task takes inside of
Airflow. Neither side has a scheduler. Airflow's plugins are loaded before the clock starts, as Airflow's task runner
does it for every task, whatever its operator.
"""

from __future__ import annotations

import json
import os
import tempfile
from itertools import count
from pathlib import Path

from benchmarks.harness import Row, paired, python_seconds

RUNS = int(os.environ.get("P2_RUNS", 5))
FILES = 4
ROWS = 2_000
SCHEMA = "id long, customer string, amount double, ts timestamp"

BEGIN = """
import time
from airflow.sdk.listener import get_listener_manager
get_listener_manager()
started = time.perf_counter()
import json, os, sys
from types import SimpleNamespace
from airflow_provider_microbatch import FileSink, FileSource, Pipeline
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
conf = {"spark.ui.enabled": "false", **json.loads(os.environ.get("BENCH_CONF", "{}"))}
"""
"""Of a process that runs our task: from here on its time counts."""
EXECUTE = """
bundle = SimpleNamespace(name="bench", version=None, path=home)
ti = SimpleNamespace(dag_id="bench", run_id=number, task_id="t", map_index=-1, id=number, try_number=1,
                     bundle_instance=bundle)
run = SimpleNamespace(clear_number=0, logical_date=None, partition_key=None, partition_date=None, run_type="manual")
task = MicroBatchOperator(task_id="t", pipeline=pipeline, conf=conf)
summary = task.execute({"ti": ti, "dag_run": run, "dag": None})
"""
"""Runs ``pipeline`` in ``home`` as Airflow would, as run ``number``."""
OURS = (
    BEGIN
    + """
home, number, schema = sys.argv[1:]
pipeline = Pipeline(
    "bench", checkpoint=f"{home}/checkpoint", transform="job.py:transform", sink=FileSink(f"{home}/lake"),
    sources={"orders": FileSource(f"{home}/landing", format="json", schema=schema)},
)
"""
    + EXECUTE
    + """
assert summary["state"] == "committed", summary
print(json.dumps(time.perf_counter() - started))
"""
)

PEER = """
import time
from airflow.sdk.listener import get_listener_manager
get_listener_manager()
started = time.perf_counter()
import json, os, sys
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
application, *arguments = sys.argv[1:]
conf = {"spark.ui.enabled": "false", **json.loads(os.environ.get("BENCH_CONF", "{}"))}
task = SparkSubmitOperator(
    task_id="t", application=application, application_args=arguments, durable=False, conf=conf,
)
task.execute({})
print(json.dumps(time.perf_counter() - started))
"""
"""Submits an application. On either side: what Spark is told besides, such as the jars of a connector, is JSON in
``BENCH_CONF``."""

TRANSFORM = """
from pyspark.sql import functions as F
def transform(batch):
    return batch.sources["orders"].withColumn("cents", F.round(F.col("amount") * 100).cast("long"))
"""

BY_HAND = """
import sys
from pyspark.sql import SparkSession, functions as F
landing, target, schema = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
rows = spark.read.schema(schema).json(landing)
rows.withColumn("cents", F.round(F.col("amount") * 100).cast("long")).write.parquet(target)
spark.stop()
"""


def land(folder: Path, number: int, *, files: int = FILES, rows: int = ROWS) -> None:
    """The files of one batch.

    :param rows: in each file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for part in range(files):
        order = {"customer": "c", "amount": 1.5, "ts": "2026-01-01T00:00:00"}
        lines = [json.dumps({"id": row, **order}) for row in range(rows)]
        (folder / f"{number}-{part}.json").write_text("\n".join(lines))


def measure() -> Row:
    """The row of the table."""
    row = Row(name="P2", what="our task by spark-submit / the same by hand by spark-submit", reach=1.05)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "job.py").write_text(TRANSFORM)
        (home / "by_hand.py").write_text(BY_HAND)
        numbers = count()
        connection = json.dumps({"conn_type": "spark", "host": f"local[{os.cpu_count()}]"})
        environment = {"AIRFLOW_HOME": str(home / "airflow"), "AIRFLOW_CONN_SPARK_DEFAULT": connection}

        def ours() -> float:
            number = next(numbers)
            land(home / "landing", number)
            return python_seconds(OURS, folder, str(number), SCHEMA, **environment)

        def peer() -> float:
            number = next(numbers)
            landing = home / f"by_hand_{number}"
            land(landing, number)
            by_hand = [str(path) for path in (home / "by_hand.py", landing, home / f"lake_{number}")]
            return python_seconds(PEER, *by_hand, SCHEMA, **environment)

        return paired(row, ours=ours, peer=peer, runs=RUNS)
