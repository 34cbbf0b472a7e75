"""P15: nothing new, source by source. CPU of one poll of a sensor's trigger, beside CPU of spark-submit of an
availableNow query over the same source that has read all of it. Spark has no stream of a database's table: its side of
those is a query for the highest number.

The triggerer is a process that runs anyway, so its start and imports do not count; its clients are kept from poll to
poll, as a trigger keeps them. P1 is the same over many files.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from sqlalchemy.engine import make_url

from airflow_provider_microbatch import DeltaSource, FileSource, JdbcSource, KafkaSource
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.sources import Source
from benchmarks.harness import Row, cpu_of_submit, paired, python_seconds
from benchmarks.read_to_the_end import read_to_the_end
from tests.environments import jars
from tests.support.delta_orders import OrdersOfDelta
from tests.support.kafka import broker
from tests.support.local_spark import DELTA
from tests.support.mariadb import mariadb
from tests.support.postgres import postgres

RUNS = int(os.environ.get("P15_RUNS", 3))
POLLS = int(os.environ.get("P15_POLLS", 50))
CHOSEN = os.environ.get("P15_SOURCES", "file,kafka,delta,postgres,mariadb").split(",")
CONNECTION = "orders_db"

OURS = """
import asyncio, json, sys, time
from airflow_provider_microbatch import FileSink, Pipeline
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.sources import Source
from airflow_provider_microbatch.triggers.new_data import decide
home, source, count = sys.argv[1:]
pipeline = Pipeline(
    "bench", checkpoint=f"{home}/checkpoint", sink=FileSink(f"{home}/lake"),
    sources={"orders": Source.from_dict(json.loads(source), any_server=True)},
)
async def polls(count):
    for _ in range(count):
        decision = await asyncio.to_thread(decide, pipeline, None, backfill=False)
        assert not decision.fire, decision
async def measured():
    with lifetime():
        await polls(3)
        started = time.process_time()
        await polls(int(count))
        return time.process_time() - started
print(asyncio.run(measured()) / int(count))
"""

THEIRS = """
import sys
from pyspark.sql import SparkSession
home, *given = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
def drain(rows):
    query = rows.writeStream.foreachBatch(lambda frame, batch_id: frame.count())
    query.option("checkpointLocation", f"{home}/theirs").trigger(availableNow=True).start().awaitTermination()
QUERY
spark.stop()
"""
_HIGHEST = "spark.read.jdbc(given[0], '(SELECT max(id) AS id FROM orders) AS newest', properties=PROPERTIES).collect()"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One source and its peer.

    :param query: what Spark does, by ``given``.
    :param given: what the query is told.
    :param packages: jars that Spark has beside its own.
    :param conf: Spark's.
    :param connection: of the source.
    """

    source: Source
    query: str
    given: Sequence[str]
    packages: Sequence[Path] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    connection: Connection | None = None


def measure() -> list[Row]:
    """The rows of the table, one for each source."""
    return [_measure(name) for name in CHOSEN]


def _measure(name: str) -> Row:
    row = Row(name="P15", what=f"CPU of a poll of {name}, nothing new / of spark-submit of availableNow", reach=0.002)
    with tempfile.TemporaryDirectory() as folder, CASES[name](Path(folder)) as case:
        home = Path(folder)
        read_to_the_end(f"{home}/checkpoint", case.source, connection=case.connection)
        script = home / "query.py"
        script.write_text(THEIRS.replace("QUERY", case.query))
        environment = {"AIRFLOW_HOME": f"{home}/airflow"}
        if case.connection is not None:
            of = case.connection
            told = {"conn_type": of.conn_type, "host": of.host, "port": of.port, "schema": of.schema, "login": of.login}
            environment[f"AIRFLOW_CONN_{CONNECTION.upper()}"] = json.dumps(told)

        def ours() -> float:
            return python_seconds(OURS, folder, json.dumps(case.source.to_dict()), str(POLLS), **environment)

        def peer() -> float:
            return cpu_of_submit(script, [folder, *case.given], packages=case.packages, conf=case.conf)

        return paired(row, ours=ours, peer=peer, runs=RUNS)


@contextmanager
def _files(home: Path) -> Iterator[Case]:
    landing = home / "landing"
    landing.mkdir()
    for number in range(100):
        (landing / f"{number:04}.json").write_text(f'{{"id": {number}}}\n')
    yield Case(
        source=FileSource(str(landing), format="json", schema="id long"),
        query="drain(spark.readStream.schema('id long').json(given[0]))",
        given=[str(landing)],
    )


@contextmanager
def _topic(home: Path) -> Iterator[Case]:
    with broker() as running:
        topic = running.topic(partitions=3)
        running.send(topic, [str(number) for number in range(1000)])
        yield Case(
            source=KafkaSource(bootstrap_servers=running.address, topics=[topic]),
            query="stream = spark.readStream.format('kafka').option('kafka.bootstrap.servers', given[0])\n"
            "drain(stream.option('subscribe', given[1]).option('startingOffsets', 'earliest').load())",
            given=[running.address, topic],
            packages=[jar for jar in jars("kafka-connector") if not jar.name.startswith("hadoop-")],
        )


@contextmanager
def _delta(home: Path) -> Iterator[Case]:
    orders = OrdersOfDelta(home / "orders")
    for _ in range(20):
        orders.append(10)
    own = ("delta-", "RoaringBitmap", "shims", "unitycatalog")
    yield Case(
        source=DeltaSource(str(home / "orders")),
        query="drain(spark.readStream.format('delta').load(given[0]))",
        given=[str(home / "orders")],
        packages=[jar for jar in jars("delta") if jar.name.startswith(own)],
        conf=DELTA,
    )


@contextmanager
def _postgres(home: Path) -> Iterator[Case]:
    with postgres() as server:
        url = make_url(server.database("shop"))
        with psycopg.connect(host=url.host, port=url.port, dbname=url.database, user=url.username) as session:
            session.execute("CREATE TABLE orders (id bigserial PRIMARY KEY, note text)")
            session.execute("INSERT INTO orders (note) SELECT 'x' FROM generate_series(1, 1000)")
        properties = {"user": str(url.username), "driver": "org.postgresql.Driver"}
        yield Case(
            source=JdbcSource("orders", CONNECTION),
            query=_HIGHEST.replace("PROPERTIES", repr(properties)),
            given=[f"jdbc:postgresql://{url.host}:{url.port}/{url.database}"],
            packages=jars("postgres-driver"),
            connection=Connection(
                conn_id=CONNECTION,
                conn_type="postgres",
                host=url.host,
                port=url.port,
                schema=url.database,
                login=url.username,
            ),
        )


@contextmanager
def _mariadb(home: Path) -> Iterator[Case]:
    with mariadb() as server:
        with closing(server.connect()) as session, session.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
            cursor.execute("CREATE TABLE shop.orders (id bigint AUTO_INCREMENT PRIMARY KEY, note text)")
            cursor.execute("INSERT INTO shop.orders (note) SELECT 'x' FROM shop.seq_1_to_1000")
        properties = {"user": "root", "driver": "org.mariadb.jdbc.Driver"}
        yield Case(
            source=JdbcSource("orders", CONNECTION, database="mariadb"),
            query=_HIGHEST.replace("PROPERTIES", repr(properties)),
            given=[f"jdbc:mysql://127.0.0.1:{server.port}/shop?permitMysqlScheme"],
            packages=jars("mariadb-driver"),
            connection=Connection(
                conn_id=CONNECTION, conn_type="mysql", host="127.0.0.1", port=server.port, schema="shop", login="root"
            ),
        )


CASES: dict[str, Callable[[Path], AbstractContextManager[Case]]] = {
    "file": _files,
    "kafka": _topic,
    "delta": _delta,
    "postgres": _postgres,
    "mariadb": _mariadb,
}
