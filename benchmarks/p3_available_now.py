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


def measure() -> Row:
    """The row of the table."""
    row = Row(name="P3", what=f"our task by spark-submit / an availableNow query by spark-submit{WHERE}", reach=0.95)
    with tempfile.TemporaryDirectory() as folder, spark_master(Path(folder, "cluster")) as master:
        home, theirs = Path(folder, "ours"), Path(folder, "peer")
        for side in (home, theirs):
            side.mkdir()
        (home / "job.py").write_text(TRANSFORM)
        (theirs / "query.py").write_text(QUERY)
        numbers = count()
        connection = json.dumps({"conn_type": "spark", "host": master})
        environment = {"AIRFLOW_HOME": f"{folder}/airflow", "AIRFLOW_CONN_SPARK_DEFAULT": connection}

        def ours() -> float:
            number = next(numbers)
            land(home / "landing", number)
            return python_seconds(OURS, str(home), str(number), SCHEMA, **environment)

        def peer() -> float:
            land(theirs / "landing", next(numbers))
            return python_seconds(PEER, str(theirs / "query.py"), str(theirs), SCHEMA, **environment)

        return paired(row, ours=ours, peer=peer, runs=RUNS)
