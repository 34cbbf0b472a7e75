"""``python -m tests.support.spark_classes FOLDER``: an archive of the classes that tests load of Spark. Java starts
with it in two thirds of the time. In the format of ``microbatch class-archive``, so a connection may name the folder.

Java goes without it, in silence, where another folder of configuration is on the class path, or other jars are.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_microbatch.engines.class_archive import FACTS, ClassArchive
from airflow_provider_microbatch.runtime.streaming import ROCKSDB
from tests.environments import QUICK_JAVA
from tests.support.local_spark import end_jvm, local_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVE = "classes.jsa"
CONF = "conf"
SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def shared(folder: Path) -> dict[str, str]:
    """The environment of a Spark that starts by a folder's archive; without one that of one that starts."""
    archive = folder / ARCHIVE
    if not archive.exists():
        return QUICK_JAVA
    options = f"{QUICK_JAVA['SPARK_SUBMIT_OPTS']} -XX:SharedArchiveFile={archive} {SILENT}"
    return {"SPARK_SUBMIT_OPTS": options, "SPARK_CONF_DIR": str(folder / CONF)}


def use(spark: SparkSession, scratch: Path) -> None:
    """What tests do, by and large: files and tables, a join, an aggregate, a stream with state."""
    schema = "id long, customer string, amount double, ts timestamp"
    landing = scratch / "landing"
    landing.mkdir()
    rows = ({"id": n, "customer": f"c{n % 7}", "amount": n / 4, "ts": "2026-01-01T00:00:00"} for n in range(200))
    (landing / "rows.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    frame = spark.read.schema(schema).json(str(landing)).selectExpr("*", "input_file_name() as file")
    counts = frame.where("amount > 1").groupBy("customer").count()
    for format in ("parquet", "json", "csv", "orc"):
        frame.join(counts, "customer").write.format(format).save(str(scratch / format))
        spark.read.format(format).load(str(scratch / format)).count()
    frame.mapInPandas(lambda frames: frames, frame.schema).toPandas()
    stream = spark.readStream.schema(schema).json(str(landing)).withWatermark("ts", "1 minute")
    query = stream.dropDuplicates(["id", "ts"]).groupBy("customer").count().writeStream
    into = query.foreachBatch(lambda batch, _: batch.write.mode("append").parquet(str(scratch / "counts")))
    into.outputMode("update").option("checkpointLocation", str(scratch / "query")).trigger(
        availableNow=True
    ).start().awaitTermination()


def main(folder: Path) -> None:
    """Make it."""
    import pyspark

    (folder / CONF).mkdir(parents=True, exist_ok=True)
    archive = folder / ARCHIVE
    os.environ |= {
        "SPARK_SUBMIT_OPTS": f"{QUICK_JAVA['SPARK_SUBMIT_OPTS']} -XX:ArchiveClassesAtExit={archive} {SILENT}",
        "SPARK_CONF_DIR": str(folder / CONF),
    }
    with tempfile.TemporaryDirectory() as scratch:
        with local_spark(conf={"spark.sql.streaming.stateStore.providerClass": ROCKSDB}) as spark:
            use(spark, Path(scratch))
        end_jvm()
    facts = ClassArchive(file=ARCHIVE, bytes=archive.stat().st_size, spark=pyspark.__version__)
    (folder / FACTS).write_text(json.dumps(asdict(facts)) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
