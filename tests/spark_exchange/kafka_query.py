"""A Structured Streaming query over topics for the exchange tests.

    python kafka_query.py <address of a broker> <jars, comma-separated>

Each line on its input, ``{"work": folder, "topic": name, "most": rows a batch}``, is a query of its own: it checkpoints
in ``<work>/checkpoint``, takes what is there and stops; then what each of its batches had is printed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession


def main(broker: str, jars: str) -> None:
    """Run the queries, one after the other, in one session."""
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.jars", jars)
    spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    for line in sys.stdin:
        asked = json.loads(line)
        found: dict[int, list[str]] = {}

        def write(frame: DataFrame, batch_id: int, found: dict[int, list[str]] = found) -> None:
            found[batch_id] = sorted(row.value.decode() for row in frame.collect())

        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker)
        reader = reader.option("subscribe", asked["topic"]).option("maxOffsetsPerTrigger", asked["most"])
        stream = reader.option("startingOffsets", "earliest").load().writeStream.foreachBatch(write)
        stream = stream.option("checkpointLocation", str(Path(asked["work"]) / "checkpoint"))
        stream.trigger(availableNow=True).start().awaitTermination()
        print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
