"""P15: nothing new, source by source. CPU of one poll of a sensor's trigger, beside CPU of spark-submit of an
availableNow query over the same source that has read all of it. Where Spark has no such stream, its side is less than
that: for a database's table and for a slot, a query for the table's highest number; for Kinesis and Tablestore, the
start and the end of a query alone, over a folder without a file.

The triggerer is a process that runs anyway, so its start and imports do not count; its clients are kept from poll to
poll, as a trigger keeps them. What a planner process takes counts; what a server takes does not, on neither side. P1 is
the same over many files.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psycopg
from sqlalchemy.engine import make_url

from airflow_provider_microbatch import (
    DeltaSource,
    FileSource,
    IcebergSource,
    JdbcSource,
    KafkaSource,
    KinesisSource,
    PythonSource,
    TablestoreSource,
)
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.sources import Source
from benchmarks.harness import ROOT, Row, cpu_of_submit, paired, python_seconds
from benchmarks.read_to_the_end import read_to_the_end
from tests.environments import jars
from tests.support import kinesis, tablestore
from tests.support.delta_orders import OrdersOfDelta
from tests.support.iceberg_orders import iceberg_orders
from tests.support.iceberg_table import catalog_file
from tests.support.kafka import broker
from tests.support.local_spark import DELTA
from tests.support.mariadb import mariadb
from tests.support.postgres import postgres
from tests.support.slot_table import slot_table

RUNS = int(os.environ.get("P15_RUNS", 3))
POLLS = int(os.environ.get("P15_POLLS", 50))
CONNECTION = "orders_db"
_CHANNELS = 4

OURS = """
import asyncio, json, resource, sys, time
import psutil
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
def spent():
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    living = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    of_living = sum(one.user + one.system + one.children_user + one.children_system for one in living)
    return time.process_time() + ended.ru_utime + ended.ru_stime + of_living
async def measured():
    with lifetime():
        await polls(3)
        started = spent()
        await polls(int(count))
        return spent() - started
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
_ONLY_HIGHEST = "Spark has no stream of it, and asks for the table's highest number"
_NOTHING = "drain(spark.readStream.text(given[0]))"
_ONLY_STARTS = "Spark has no stream of it, and looks at a folder without a file"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One source and its peer.

    :param query: what Spark does, by ``given``.
    :param given: what the query is told.
    :param packages: jars that Spark has beside its own.
    :param conf: Spark's.
    :param connection: of the source.
    :param environment: of both sides.
    :param note: what Spark does in place of a stream, if it has none of the source.
    """

    source: Source
    query: str
    given: Sequence[str]
    packages: Sequence[Path] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    connection: Connection | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def measure() -> list[Row]:
    """The rows of the table, one for each source."""
    return [_measure(name) for name in CHOSEN]


def _measure(name: str) -> Row:
    what = f"CPU of a poll of {name}, nothing new / of spark-submit of availableNow"
    with tempfile.TemporaryDirectory() as folder, CASES[name](Path(folder)) as case:
        home, row = Path(folder), Row(name="P15", what=what, reach=0.002, note=case.note)
        read_to_the_end(f"{home}/checkpoint", case.source, connection=case.connection)
        script = home / "query.py"
        script.write_text(THEIRS.replace("QUERY", case.query))
        environment = {**case.environment, "AIRFLOW_HOME": f"{home}/airflow"}
        if case.connection is not None:
            told = asdict(case.connection)
            conn_id = told.pop("conn_id")
            environment[f"AIRFLOW_CONN_{conn_id.upper()}"] = json.dumps(told)

        def ours() -> float:
            return python_seconds(OURS, folder, json.dumps(case.source.to_dict()), str(POLLS), **environment)

        def peer() -> float:
            return cpu_of_submit(
                script, [folder, *case.given], packages=case.packages, conf=case.conf, environment=case.environment
            )

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
def _iceberg(home: Path) -> Iterator[Case]:
    lake, catalog = home / "lake", "spark.sql.catalog.tests"
    with iceberg_orders(lake) as orders:
        for _ in range(20):
            orders.append(10)
        yield Case(
            source=IcebergSource(orders.conn_id, orders.name),
            query="drain(spark.readStream.format('iceberg').load(given[0]))",
            given=[f"tests.{orders.name}"],
            packages=jars("iceberg"),
            conf={
                catalog: "org.apache.iceberg.spark.SparkCatalog",
                f"{catalog}.type": "jdbc",
                f"{catalog}.uri": f"jdbc:sqlite:{catalog_file(lake)}",
                f"{catalog}.warehouse": str(lake),
            },
            connection=orders.connection,
        )


@contextmanager
def _python(home: Path) -> Iterator[Case]:
    module, head = "tests.user_code.number_streams", home / "head"
    head.write_text("1000")
    yield Case(
        source=PythonSource(f"{module}:Numbers", options={"path": str(head)}, travels=False),
        query=f"from {module} import Numbers\nspark.dataSource.register(Numbers)\n"
        "drain(spark.readStream.format('numbers').option('path', given[0]).load())",
        given=[str(head)],
        environment={"PYTHONPATH": str(ROOT), "AIRFLOW__MICROBATCH__TRUSTED_MODULES": module},
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
            note=_ONLY_HIGHEST,
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
            note=_ONLY_HIGHEST,
        )


@contextmanager
def _slot(home: Path) -> Iterator[Case]:
    with slot_table() as table:
        table.execute("INSERT INTO orders (note) SELECT 'x' FROM generate_series(1, 1000)")
        of = table.orders.connection
        properties = {"user": str(of.login), "driver": "org.postgresql.Driver"}
        yield Case(
            source=table.source(),
            query=_HIGHEST.replace("PROPERTIES", repr(properties)),
            given=[f"jdbc:postgresql://{of.host}:{of.port}/{of.schema}"],
            packages=jars("postgres-driver"),
            connection=of,
            note=_ONLY_HIGHEST,
        )


@contextmanager
def _kinesis(home: Path) -> Iterator[Case]:
    stream = kinesis.Stream(shards=_CHANNELS, server=kinesis.MOTO)
    for shard in range(_CHANNELS):
        stream.send([str(number) for number in range(10)], at=shard / _CHANNELS)
    # As polls a minute apart, each lists the channels.
    source = KinesisSource(stream.name, conn_id=kinesis.CONN_ID, discover_seconds=0)
    yield _channels(home, source, kinesis.connection(server=kinesis.MOTO))


@contextmanager
def _tablestore(home: Path) -> Iterator[Case]:
    table = tablestore.Table(shards=_CHANNELS)
    for shard in range(_CHANNELS):
        table.put([f"{shard}-{number}" for number in range(10)], at=shard / _CHANNELS)
    source = TablestoreSource(table.name, table.tunnel, conn_id=tablestore.CONN_ID, discover_seconds=0)
    yield _channels(home, source, tablestore.connection())


def _channels(home: Path, source: Source, connection: Connection) -> Case:
    (home / "empty").mkdir()
    return Case(source=source, query=_NOTHING, given=[str(home / "empty")], connection=connection, note=_ONLY_STARTS)


CASES: dict[str, Callable[[Path], AbstractContextManager[Case]]] = {
    "file": _files,
    "kafka": _topic,
    "delta": _delta,
    "iceberg": _iceberg,
    "python": _python,
    "postgres": _postgres,
    "mariadb": _mariadb,
    "slot": _slot,
    "kinesis": _kinesis,
    "tablestore": _tablestore,
}

CHOSEN = os.environ.get("P15_SOURCES", ",".join(CASES)).split(",")
