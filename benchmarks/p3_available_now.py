"""P3: one batch as our task, beside SparkSubmitOperator around an availableNow query that takes the same files.

Both sides are a Python process that imports its operator and calls ``execute``. Both have a checkpoint that goes on
from pair to pair, and a landing folder with the files of the batches before.
"""

from __future__ import annotations

import json
import os
import tempfile
from itertools import count
from pathlib import Path

from airflow_provider_microbatch.engines import class_archive
from benchmarks.harness import Row, paired, python_seconds
from benchmarks.p2_one_batch import OURS, PEER, SCHEMA, TRANSFORM, land
from benchmarks.standalone import WHERE, spark_master

RUNS = int(os.environ.get("P3_RUNS", 5))

QUERY = """
import sys
from pyspark.sql import SparkSession, functions as F
home, schema = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema(schema).json(f"{home}/landing")
made = rows.withColumn("cents", F.round(F.col("amount") * 100).cast("long"))
writer = made.writeStream.format("parquet").option("checkpointLocation", f"{home}/checkpoint")
query = writer.trigger(availableNow=True).start(f"{home}/lake")
query.awaitTermination()
assert sum(done["numInputRows"] for done in query.recentProgress), "there was a batch to make"
spark.stop()
"""


def measure() -> list[Row]:
    """The rows of the table: P3, and P3a with a class archive in our connection."""
    with tempfile.TemporaryDirectory() as folder, spark_master(Path(folder, "cluster")) as master:
        plain = _measure("P3", "our task by spark-submit", Path(folder, "plain"), master, {})
        classes = Path(folder, "classes")
        class_archive.make(classes, conf={})
        extra = {class_archive.EXTRA: str(classes)}
        return [plain, _measure("P3a", "our task, with a class archive,", Path(folder, "archived"), master, extra)]


def _measure(name: str, what: str, folder: Path, master: str, extra: dict[str, str]) -> Row:
    row = Row(name=name, what=f"{what} / an availableNow query by spark-submit{WHERE}", reach=0.95)
    home, theirs = folder / "ours", folder / "peer"
    for side in (home, theirs):
        side.mkdir(parents=True)
    (home / "job.py").write_text(TRANSFORM)
    (theirs / "query.py").write_text(QUERY)
    numbers = count()
    connection = {"conn_type": "spark", "host": master}

    def environment(**more: object) -> dict[str, str]:
        told = json.dumps({**connection, **more})
        return {"AIRFLOW_HOME": f"{folder}/airflow", "AIRFLOW_CONN_SPARK_DEFAULT": told}

    def ours() -> float:
        number = next(numbers)
        land(home / "landing", number)
        return python_seconds(OURS, str(home), str(number), SCHEMA, **environment(extra=json.dumps(extra)))

    def peer() -> float:
        land(theirs / "landing", next(numbers))
        return python_seconds(PEER, str(theirs / "query.py"), str(theirs), SCHEMA, **environment())

    return paired(row, ours=ours, peer=peer, runs=RUNS)
