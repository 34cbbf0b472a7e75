"""Write the golden checkpoints: what a real Structured Streaming query leaves, made once for each version of Spark.

    PATH=<environment>/bin:$PATH python make_golden.py <v1|v2> <target folder>

Two json file sources, ``orders`` and ``refunds``. Batch 0 has orders alone, batch 1 both, batches 2 to 11 orders again,
so that the source log of orders is compacted at 9; the commit of batch 11 is removed, as a crash leaves it. The paths
in the source logs are rewritten to ``file:///data/...``. The run with pyspark 4.1.3 is v1, the one with 4.2.0 v2.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

EVOLUTION = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}


def read(spark: SparkSession, name: str, folder: Path, version: str) -> DataFrame:
    """A streaming read of one landing folder."""
    reader = spark.readStream.schema("id long")
    if version == "v2":
        reader = reader.name(name)
    return reader.json(str(folder))


def main(version: str, target: Path) -> None:
    """Run the query batch by batch and copy its checkpoint."""
    work = Path(tempfile.mkdtemp())
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "1")
    for key, value in EVOLUTION.items() if version == "v2" else ():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for name in ("orders", "refunds"):
        (work / name).mkdir()
    frames = [read(spark, name, work / name, version) for name in ("orders", "refunds")]
    query_input = frames[0].union(frames[1])
    for batch in range(12):
        name = "a b" if batch == 0 else f"order-{batch:02d}"
        (work / "orders" / f"{name}.json").write_text(json.dumps({"id": batch}))
        if batch == 1:
            (work / "refunds" / "é%20+.json").write_text(json.dumps({"id": 100}))
        writer = query_input.writeStream.format("noop").option("checkpointLocation", str(work / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()
    shutil.rmtree(target, ignore_errors=True)
    for path in sorted((work / "checkpoint").rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            copy = target / path.relative_to(work / "checkpoint")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(re.sub(r"file:/+[^\"]*?/(orders|refunds)/", r"file:///data/\1/", path.read_text()))
    (target / "commits" / "11").unlink()
    shutil.rmtree(work)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
