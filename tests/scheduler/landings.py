"""Where what a documented DAG reads lands: in a folder, a table, a topic, a stream, a log or a bucket; and what its
tables have, as a reader of all of each finds it."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet
from pyiceberg.table import StaticTable
from sqlalchemy.engine import make_url

from airflow_provider_microbatch.connections import Connection
from tests.environments import jars
from tests.scheduler.shop import Shop, order
from tests.sources.test_kafka_spark import CONNECTOR
from tests.support import kafka, kinesis, object_store, orders_table, tablestore
from tests.support.tablestore_tunnels import PUT

_BUCKET = re.compile(r'"s3://bucket@([\w-]+)/')
_READS = {
    "topic": re.compile(r'KafkaSource\(.*topics=\["(\w+)"\]'),
    "stream": re.compile(r'KinesisSource\("(\w+)"'),
    "log": re.compile(r'TablestoreSource\("(\w+)"'),
    "bucket": re.compile(r'FileSource\("s3://\w+@([\w-]+)/\w+"'),
    "table": re.compile(r'DeltaSource\("([^"]*/lake/\w+)"'),
    "changes": re.compile(r'SlotSource\(\s*"\w+",\s*"(\w+)"'),
    "folder": re.compile(r"/landing/(\w+)"),
}


class Landing(Protocol):
    """What a source looks at."""

    ends_late: ClassVar[bool]
    """Whether a batch takes what has come until it is read, and not until it is planned."""

    def land(self, number: int, ids: Sequence[int]) -> None:
        """Have orders of these ids there, all at once.

        :param number: of what lands, from 0.
        """
        ...


class Folder:
    """A file each."""

    ends_late: ClassVar[bool] = False

    def __init__(self, name: str, shop: Shop) -> None:
        self._name, self._shop = name, shop

    def land(self, number: int, ids: Sequence[int]) -> None:
        self._shop.land(self._name, f"{number}", [order(id) for id in ids])


class Table:
    """A version each."""

    ends_late: ClassVar[bool] = False

    def __init__(self, path: str, shop: Shop) -> None:
        self._path = path

    def land(self, number: int, ids: Sequence[int]) -> None:
        write_deltalake(self._path, pa.Table.from_pylist([order(id) for id in ids]), mode="append")


class Topic:
    """A record for each order."""

    ends_late: ClassVar[bool] = False

    def __init__(self, name: str, shop: Shop) -> None:
        self._name = kafka.running().topic(name=name, partitions=2)
        shop.connect("kafka", "kafka", extra={"bootstrap.servers": kafka.running().address})

    def land(self, number: int, ids: Sequence[int]) -> None:
        kafka.running().send(self._name, [json.dumps(order(id)) for id in ids], partition=number % 2)


class ShardStream:
    """A record for each order."""

    ends_late: ClassVar[bool] = True

    def __init__(self, name: str, shop: Shop) -> None:
        self._stream = kinesis.Stream(name=name)
        self._stream.create(2)
        known = kinesis.connection()
        shop.connect("aws_default", known.conn_type, login=known.login, password=known.password, extra=known.extra)

    def land(self, number: int, ids: Sequence[int]) -> None:
        self._stream.send([json.dumps(order(id)) for id in ids], at=0.5 * (number % 2))


class TableLog:
    """A row for each order."""

    ends_late: ClassVar[bool] = True

    def __init__(self, name: str, shop: Shop) -> None:
        self._table = tablestore.Table(name=name, shards=2)
        known = tablestore.connection()
        where = {"host": known.host, "schema": known.schema, "login": known.login, "password": known.password}
        shop.connect("tablestore", known.conn_type, extra={}, **where)

    def land(self, number: int, ids: Sequence[int]) -> None:
        for id in ids:
            columns = {name: value for name, value in order(id).items() if name != "id"}
            self._table.write(PUT, {"id": id}, columns, at=0.5 * (number % 2))


class Changes:
    """An insert for each order, and a transaction for all at once."""

    ends_late: ClassVar[bool] = False

    def __init__(self, name: str, shop: Shop) -> None:
        self._name, self._to = name, make_url(orders_table.server().database("documented"))
        self._execute(
            f"CREATE TABLE {name} (id bigint PRIMARY KEY, customer text, amount double precision, ts timestamptz)",
            f"ALTER TABLE {name} REPLICA IDENTITY FULL",
            f"CREATE PUBLICATION {name}_changes FOR TABLE {name}",
        )
        to = self._to
        where = {"host": to.host, "port": to.port, "schema": to.database, "login": to.username}
        shop.connect("orders_db", "postgres", extra={}, **where)

    def land(self, number: int, ids: Sequence[int]) -> None:
        rows = json.dumps([order(id) for id in ids])
        self._execute(f"INSERT INTO {self._name} SELECT * FROM json_populate_recordset(NULL::{self._name}, '{rows}')")

    def _execute(self, *statements: str) -> None:
        to = self._to
        with psycopg.connect(host=to.host, port=to.port, dbname=to.database, user=to.username) as session:
            for statement in statements:
                session.execute(statement.encode())


class Bucket:
    """An object each."""

    ends_late: ClassVar[bool] = False

    def __init__(self, name: str, shop: Shop) -> None:
        self._name = name

    def land(self, number: int, ids: Sequence[int]) -> None:
        body = "".join(json.dumps(order(id)) + "\n" for id in ids).encode()
        object_store.client().put_object(Bucket=self._name, Key=f"orders/{number}.json", Body=body)


_KINDS: dict[str, Any] = {
    "topic": Topic,
    "stream": ShardStream,
    "log": TableLog,
    "bucket": Bucket,
    "table": Table,
    "changes": Changes,
    "folder": Folder,
}


def buckets(conn_id: str = "bucket") -> Connection:
    """The Airflow connection that leads to all buckets."""
    extra = {"endpoint_url": object_store.endpoint(), "region_name": "us-east-1"}
    return Connection(
        conn_id=conn_id, conn_type="aws", login=object_store.KEY, password=object_store.SECRET, extra=extra
    )


def landing_of(text: str, shop: Shop) -> Landing | None:
    """Make what the source of a DAG looks at, with what leads to it. None for a DAG that makes no batches."""
    for bucket in sorted(set(_BUCKET.findall(text))):
        object_store.client().create_bucket(Bucket=bucket)
        known = buckets()
        shop.connect("bucket", known.conn_type, login=known.login, password=known.password, extra=known.extra)
    for kind, names in _READS.items():
        # An example that has a pipeline of its own names what that reads last.
        if found := names.findall(text):
            landing: Landing = _KINDS[kind](found[-1], shop)
            return landing
    return None


def in_tables(folder: Path) -> Mapping[str, list[int]]:
    """The ids in each table that lies in a folder, sorted."""
    tables = {}
    for path in folder.iterdir() if folder.exists() else ():
        if (path / "_delta_log").is_dir():
            table = DeltaTable(path.as_uri()).to_pyarrow_table(columns=["id"])
        elif (path / "metadata").is_dir():
            newest = max((path / "metadata").glob("*.metadata.json"))
            table = StaticTable.from_metadata(str(newest)).scan(selected_fields=("id",)).to_arrow()
        else:
            table = ds.dataset(path, partitioning="hive").to_table(columns=["id"])
        tables[path.name] = sorted(table["id"].to_pylist())
    return tables


def in_bucket(address: str) -> list[int]:
    """The ids in a table that lies in a bucket, sorted, by the manifests that name its files."""
    s3, ids = object_store.client(), list[int]()
    bucket, _, prefix = address.partition("@")[2].partition("/")
    for one in s3.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/_symlink_format_manifest/").get("Contents", ()):
        for file in s3.get_object(Bucket=bucket, Key=one["Key"])["Body"].read().decode().splitlines():
            found = s3.get_object(Bucket=bucket, Key=file.removeprefix(f"s3://{bucket}/"))["Body"].read()
            ids += parquet.read_table(io.BytesIO(found), columns=["id"])["id"].to_pylist()
    return sorted(ids)


def connectors() -> list[Path]:
    """The jars that Spark reads topics and buckets by."""
    of_kafka = [jar for jar in jars("kafka-connector") if jar.name.startswith(CONNECTOR)]
    return of_kafka + jars("s3a-connector")
