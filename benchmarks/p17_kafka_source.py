"""P17: a batch that reads a million records of a topic, beside a hand-written read of the same offsets, by the same
connector. Both write them to Parquet; both are processes that import their operator and call ``execute``, as in P2."""

from __future__ import annotations

import json
import os
import tempfile
from itertools import count
from pathlib import Path

from benchmarks.harness import Row, paired, python_seconds
from benchmarks.p2_one_batch import BEGIN, EXECUTE, PEER
from tests.environments import jars
from tests.support.kafka import Broker, broker

RUNS = int(os.environ.get("P17_RUNS", 5))
RECORDS = int(os.environ.get("P17_RECORDS", 1_000_000))
PARTITIONS = 4

TRANSFORM = """
def transform(batch):
    return batch.sources["orders"].selectExpr("partition", "offset", "timestamp", "cast(value as string) as value")
"""

OURS = (
    BEGIN
    + """
from airflow_provider_microbatch import KafkaSource
home, number, servers, topic, jars, rows = sys.argv[1:]
own = f"{home}/{number}"
pipeline = Pipeline(
    "bench", checkpoint=f"{own}/checkpoint", transform="job.py:transform", sink=FileSink(f"{own}/lake"),
    sources={"orders": KafkaSource(bootstrap_servers=servers, topics=[topic], jars=jars.split(","))},
)
"""
    + EXECUTE
    + """
assert (summary["state"], summary["rows_out"]) == ("committed", int(rows)), summary
print(json.dumps(time.perf_counter() - started))
"""
)

BY_HAND = """
import sys
from pyspark.sql import SparkSession
servers, topic, start, end, target = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
rows = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
rows = rows.option("kafka.isolation.level", "read_committed")
rows = rows.option("startingOffsets", start).option("endingOffsets", end).load()
rows.selectExpr("partition", "offset", "timestamp", "cast(value as string) as value").write.parquet(target)
spark.stop()
"""


def measure() -> Row:
    """The row of the table."""
    row = Row(name="P17", what=f"a batch of {RECORDS:,} records of a topic / its offsets read by hand", reach=1.05)
    connector = ",".join(map(str, jars("kafka-connector")))
    with tempfile.TemporaryDirectory() as folder, broker() as started:
        home, numbers, topic = Path(folder), count(), started.topic(partitions=PARTITIONS)
        ends = _fill(started, topic)
        (home / "job.py").write_text(TRANSFORM)
        (home / "by_hand.py").write_text(BY_HAND)
        environment = {
            "AIRFLOW_HOME": str(home / "airflow"),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": f"local[{os.cpu_count()}]"}),
        }
        servers = started.address
        start, end = (json.dumps({topic: offsets}) for offsets in (dict.fromkeys(ends, 0), ends))

        def ours() -> float:
            given = (folder, str(next(numbers)), servers, topic, connector, str(RECORDS))
            return python_seconds(OURS, *given, **environment)

        def peer() -> float:
            given = (str(home / "by_hand.py"), servers, topic, start, end, str(home / f"by_hand_{next(numbers)}"))
            return python_seconds(PEER, *given, **environment, BENCH_CONF=json.dumps({"spark.jars": connector}))

        return paired(row, ours=ours, peer=peer, runs=RUNS)


def _fill(started: Broker, topic: str) -> dict[str, int]:
    """Send all records; the ends of the partitions."""
    producer = started.producer({"linger.ms": 50, "batch.size": 1_000_000, "queue.buffering.max.messages": 200_000})
    order = json.dumps({"customer": "c", "amount": 1.5, "ts": "2026-01-01T00:00:00", "note": "n" * 40})
    for number in range(RECORDS):
        while True:
            try:
                producer.produce(topic, value=order, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    return {str(partition): RECORDS // PARTITIONS for partition in range(PARTITIONS)}
