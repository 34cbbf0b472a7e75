"""A Structured Streaming query for the exchange tests; runs in an environment that has nothing but pyspark.

    python query.py <v1|v2>

Each line on its input, ``{"work": folder, "files": files a batch}``, is a query of its own: it reads ``<work>/orders``
and ``<work>/refunds``, checkpoints in ``<work>/checkpoint``, takes what is there and stops; then a line is printed.
Every batch goes to ``<work>/out/<batch id>-<run>.json``: the ids it had.
"""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

EVOLUTION = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    # Spark 4.2.0 needs it to begin with v2; a v2 log it goes on with as it is.
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}


def main(version: str) -> None:
    """Run the queries, one after the other, in one session."""
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    for key, value in {"spark.sql.shuffle.partitions": "1", **(EVOLUTION if version == "v2" else {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for line in sys.stdin:
        asked = json.loads(line)
        catch_up(spark, version, Path(asked["work"]), asked["files"])
        print("done", flush=True)
    spark.stop()


def catch_up(spark: SparkSession, version: str, work: Path, files: int) -> None:
    """Run the query until it has read what is there."""

    def read(name: str) -> DataFrame:
        reader = spark.readStream.schema("id long").option("maxFilesPerTrigger", files)
        return (reader.name(name) if version == "v2" else reader).json(str(work / name))

    def write(frame: DataFrame, batch_id: int) -> None:
        ids = sorted(row.id for row in frame.collect())
        (work / "out" / f"{batch_id}-{uuid.uuid4().hex}.json").write_text(json.dumps(ids))

    (work / "out").mkdir(exist_ok=True)
    query = read("orders").union(read("refunds")).writeStream.foreachBatch(write)
    query = query.option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True)
    query.start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1])
