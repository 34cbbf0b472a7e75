"""P14: a batch into each sink, beside the write that Spark's own connector makes of the same files. Both are processes
that import their operator and call ``execute``, as in P2; what our orchestrator takes for the publish alone is the
row's note.

Spark writes to Iceberg through a catalog of folders, which answers faster than any service would; our side goes through
one in SQLite.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from benchmarks.harness import Row, paired, python_result, python_seconds
from benchmarks.p2_one_batch import BEGIN, EXECUTE, PEER, SCHEMA, TRANSFORM, land
from tests.environments import jars
from tests.support.kafka import broker
from tests.support.postgres import postgres

RUNS = int(os.environ.get("P14_RUNS", 5))
FILES = 4
ROWS = int(os.environ.get("P14_ROWS", 25_000))
"""In each file."""
CHOSEN = os.environ.get("P14_SINKS", "file,delta,iceberg,postgres,kafka").split(",")

OURS = (
    BEGIN
    + """
import importlib
from airflow_provider_microbatch import DeltaSink, IcebergSink, KafkaSink, PostgresSink
home, number, schema, publisher = sys.argv[1:]
module, name = publisher.split(":")
opened, spent = getattr(importlib.import_module(module), name), []
publish = opened.publish
def timed(*given, **more):
    began = time.perf_counter()
    try:
        return publish(*given, **more)
    finally:
        spent.append(time.perf_counter() - began)
opened.publish = timed
pipeline = Pipeline(
    "bench", checkpoint=f"{home}/checkpoint", transform="job.py:transform", sink=SINK,
    sources={"orders": FileSource(f"{home}/landing", format="json", schema=schema)},
)
"""
    + EXECUTE
    + """
assert summary["state"] == "committed", summary
print(json.dumps([time.perf_counter() - started, sum(spent)]))
"""
)
"""``SINK`` stands for the expression of the case."""

BY_HAND = """
import sys
from pyspark.sql import SparkSession, functions as F
landing, schema, target, *more = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
rows = spark.read.schema(schema).json(landing).withColumn("cents", F.round(F.col("amount") * 100).cast("long"))
{write}
spark.stop()
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One sink and its peer.

    :param sink: the expression that makes the sink.
    :param publisher: class that publishes, as ``module:Class``.
    :param write: statement that writes ``rows`` to ``target``.
    :param target: where the peer writes.
    :param conf: what Spark needs for the peer's write.
    :param connections: of Airflow, for our side.
    """

    sink: str
    publisher: str
    write: str
    target: str
    conf: Mapping[str, str] = field(default_factory=dict)
    connections: Mapping[str, object] = field(default_factory=dict)


def measure() -> list[Row]:
    """The rows of the table, one for each sink."""
    return [_measure(name) for name in CHOSEN]


def _measure(name: str) -> Row:
    row = Row(name="P14", what=f"a batch of {FILES * ROWS:,} rows into {name} / Spark's own write by hand", reach=1.05)
    with tempfile.TemporaryDirectory() as folder, CASES[name](Path(folder)) as case:
        home, numbers, publishing = Path(folder), count(), list[float]()
        (home / "job.py").write_text(TRANSFORM)
        (home / "by_hand.py").write_text(BY_HAND.format(write=case.write))
        environment = {
            "AIRFLOW_HOME": str(home / "airflow"),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": f"local[{os.cpu_count()}]"}),
            **{f"AIRFLOW_CONN_{id.upper()}": json.dumps(found) for id, found in case.connections.items()},
        }
        conf = json.dumps(case.conf)

        def ours() -> float:
            number = next(numbers)
            land(home / "landing", number, files=FILES, rows=ROWS)
            given = (folder, str(number), SCHEMA, case.publisher)
            seconds, published = python_result(OURS.replace("SINK", case.sink), *given, **environment)
            publishing.append(published)
            return float(seconds)

        def peer() -> float:
            number = next(numbers)
            landing = home / f"by_hand_{number}"
            land(landing, number, files=FILES, rows=ROWS)
            by_hand = (str(home / "by_hand.py"), str(landing), SCHEMA, case.target)
            return python_seconds(PEER, *by_hand, **environment, BENCH_CONF=conf)

        paired(row, ours=ours, peer=peer, runs=RUNS)
        alone = statistics.median(publishing[1:])
        return replace(row, note=f"publish alone {alone * 1000:.0f} ms")


def _jars(environment: str, *beginnings: str) -> str:
    return ",".join(str(jar) for jar in jars(environment) if jar.name.startswith(beginnings))


@contextmanager
def _file(home: Path) -> Iterator[Case]:
    yield Case(
        sink=f"FileSink({str(home / 'lake')!r})",
        publisher="airflow_provider_microbatch.sinks.file:FileSink",
        write='rows.write.mode("append").parquet(target)',
        target=str(home / "by_hand"),
    )


@contextmanager
def _delta(home: Path) -> Iterator[Case]:
    yield Case(
        sink=f"DeltaSink({str(home / 'lake')!r})",
        publisher="airflow_provider_microbatch.sinks.delta.opened:OpenDelta",
        write='rows.write.format("delta").mode("append").save(target)',
        target=str(home / "by_hand"),
        conf={
            "spark.jars": _jars("delta", "delta-", "RoaringBitmap", "shims", "unitycatalog"),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        },
    )


@contextmanager
def _iceberg(home: Path) -> Iterator[Case]:
    catalog = {"type": "sql", "uri": f"sqlite:///{home}/catalog.db", "catalog_name": "lake"}
    made = f"CREATE TABLE IF NOT EXISTS lake.shop.orders ({SCHEMA}, cents long) USING iceberg"
    yield Case(
        sink=f"IcebergSink('lake', 'shop.orders', path={str(home / 'lake')!r})",
        publisher="airflow_provider_microbatch.sinks.iceberg.opened:OpenIceberg",
        write=f'spark.sql("{made}")\nrows.writeTo(target).append()',
        target="lake.shop.orders",
        conf={
            "spark.jars": _jars("iceberg", "iceberg-"),
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": str(home / "by_hand"),
        },
        connections={"lake": {"conn_type": "iceberg", "extra": catalog}},
    )


@contextmanager
def _postgres(home: Path) -> Iterator[Case]:
    durable = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
    with postgres(settings=durable) as server:
        login = {"host": "127.0.0.1", "port": server.port, "login": "postgres", "schema": "postgres"}
        yield Case(
            sink=f"PostgresSink('warehouse', 'orders', stages={str(home / 'stages')!r})",
            publisher="airflow_provider_microbatch.sinks.postgres.open:OpenPostgres",
            write='rows.write.mode("append").option("driver", "org.postgresql.Driver").jdbc(target, "by_hand")',
            target=f"jdbc:postgresql://127.0.0.1:{server.port}/postgres?user=postgres",
            conf={"spark.jars": _jars("postgres-driver", "postgresql")},
            connections={"warehouse": {"conn_type": "postgres", **login}},
        )


@contextmanager
def _kafka(home: Path) -> Iterator[Case]:
    with broker() as started:
        ours, by_hand = started.topic(partitions=4), started.topic(partitions=4)
        stages, servers = str(home / "stages"), started.address
        yield Case(
            sink=f"KafkaSink({ours!r}, bootstrap_servers={servers!r}, stages={stages!r}, value='json')",
            publisher="airflow_provider_microbatch.sinks.kafka.opened:OpenKafka",
            write='rows.selectExpr("to_json(struct(*)) AS value").write.format("kafka")'
            f'.option("kafka.bootstrap.servers", {servers!r}).option("topic", target).save()',
            target=by_hand,
            conf={
                "spark.jars": _jars(
                    "kafka-connector", "spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2"
                )
            },
        )


CASES: Mapping[str, Callable[[Path], AbstractContextManager[Case]]] = {
    "file": _file,
    "delta": _delta,
    "iceberg": _iceberg,
    "postgres": _postgres,
    "kafka": _kafka,
}
