"""P4: one batch as our task on a warm engine, beside the same task by spark-submit.

Both sides are a Python process that calls ``execute``: the time a task takes inside of Airflow, whose own imports were
there before it, with the plugins that it loads for every task. What ``execute`` imports counts. The engine is started
once, as a user would start it.
"""

from __future__ import annotations

import json
import os
import tempfile
from itertools import count
from pathlib import Path

from airflow_provider_microbatch.engines import server
from benchmarks.harness import Row, paired, python_seconds
from benchmarks.p2_one_batch import SCHEMA, TRANSFORM, land
from benchmarks.standalone import CLUSTER, WHERE, spark_master

RUNS = int(os.environ.get("P4_RUNS", 5))

TASK = """
import json, sys, time
from types import SimpleNamespace
from airflow.sdk.listener import get_listener_manager
from airflow_provider_microbatch import FileSink, FileSource, Pipeline
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
get_listener_manager()
home, number, schema, conn_id, conf = sys.argv[1:]
pipeline = Pipeline(
    "bench", checkpoint=f"{home}/{conn_id}/checkpoint", transform="job.py:transform",
    sink=FileSink(f"{home}/{conn_id}/lake"),
    sources={"orders": FileSource(f"{home}/{conn_id}/landing", format="json", schema=schema)},
)
bundle = SimpleNamespace(name="bench", version=None, path=home)
ti = SimpleNamespace(dag_id="bench", run_id=number, task_id="t", map_index=-1, id=number, try_number=1,
                     bundle_instance=bundle)
run = SimpleNamespace(clear_number=0, logical_date=None, partition_key=None, partition_date=None, run_type="manual")
conf = {"spark.ui.enabled": "false", **json.loads(conf)} if conn_id == "spark_default" else None
task = MicroBatchOperator(task_id="t", pipeline=pipeline, conn_id=conn_id, conf=conf)
started = time.perf_counter()
summary = task.execute({"ti": ti, "dag_run": run, "dag": None})
seconds = time.perf_counter() - started
assert summary["state"] == "committed", summary
print(json.dumps(seconds))
"""


def measure() -> Row:
    """The row of the table."""
    row = Row(name="P4", what=f"one batch: our task on a warm engine / our task by spark-submit{WHERE}", reach=0.1)
    with tempfile.TemporaryDirectory() as folder, spark_master(Path(folder, "cluster")) as master:
        home = Path(folder)
        (home / "job.py").write_text(TRANSFORM)
        # Applications of a cluster take all cores, and each side waits for the other's; so each gets one.
        conf = {"spark.cores.max": "1", "spark.executor.memory": "512m"} if CLUSTER else {}
        engine = home / "engine"
        try:
            server.start(engine, master=master, conf=conf)
            (connection,) = json.loads((engine / server.CONNECTION).read_text()).values()
            environment = {
                "AIRFLOW_HOME": str(home / "airflow"),
                "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": master}),
                "AIRFLOW_CONN_SPARK_CONNECT_DEFAULT": json.dumps(connection),
            }
            numbers = count()

            def seconds(conn_id: str) -> float:
                number = next(numbers)
                land(home / conn_id / "landing", number)
                return python_seconds(TASK, folder, str(number), SCHEMA, conn_id, json.dumps(conf), **environment)

            for _ in range(2):
                seconds("spark_connect_default")  # a server that has just started compiles for the first batches
            return paired(
                row,
                ours=lambda: seconds("spark_connect_default"),
                peer=lambda: seconds("spark_default"),
                runs=RUNS,
            )
        finally:
            server.stop(engine)
