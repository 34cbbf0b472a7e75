"""Planned rows of a real PostgreSQL and a real MariaDB, read by Spark's JDBC source with the drivers that the source
requires."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.jdbc import read
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources import OpenSource, SourceContext
from airflow_provider_microbatch.sources.intervals import Interval
from airflow_provider_microbatch.sources.jdbc import DRIVER, MARIADB_DRIVER, JdbcSource
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.environments import jars
from tests.runtime.jobs import EXPECTED, make_job
from tests.support.local_spark import local_spark
from tests.support.mariadb import mariadb
from tests.support.orders_in_mariadb import orders_in_mariadb
from tests.support.orders_table import orders_table
from tests.support.postgres import postgres
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

JUNE_MS = 1_780_272_000_250  # 2026-06-01 00:00:00.25 UTC
KINDS = [
    ("postgres", "timestamptz"),
    ("postgres", "timestamp"),
    ("mariadb", "timestamp(6)"),
    ("mariadb", "datetime(6)"),
]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with local_spark(cores=2, jars=[*jars("postgres-driver"), *jars("mariadb-driver")]) as session:
        yield session


def test_exactly_the_planned_rows_are_read_by_partitions(spark: Any, tmp_path: Path) -> None:
    store = PosixStore(tmp_path / "checkpoint")
    with orders_table() as orders:
        context = SourceContext(name="orders", log=store, state=store, clock_ms=lambda: 0)
        source = JdbcSource("orders", orders.conn_id, partitions=2).open(context)
        with orders.connect() as slow:
            slow.execute("INSERT INTO orders (note) VALUES ('late')")
            orders.execute("INSERT INTO orders (note) SELECT 'n' || n FROM generate_series(2, 9) AS n")
            first = source.latest_offset(None)
        orders.execute("INSERT INTO orders (note) VALUES ('new')")
        planned = source.read(None, first)
        assert planned.requires.packages == (DRIVER,)
        sink = FileSink(str(tmp_path / "lake"), format="json")
        run_job(spark, make_job(sink, None, [], sources={"orders": planned}))
        manifest = sink.publish(EXPECTED, 1)
        assert manifest.result["numInputRows"] == {"orders": 8}
        assert sorted(row.id for row in spark.read.json(str(sink.root)).collect()) == list(range(2, 10))
        second = source.latest_offset(first)
        frame = read(spark, source.read(first, second).arguments).frame
        assert sorted(row.note for row in frame.collect()) == ["late", "new"]
        assert frame.rdd.getNumPartitions() == 2
        orders.execute("ALTER TABLE orders ADD amount numeric, ADD at timestamp")
        number = "12345678901234567890.1234567890123456789012345"
        orders.execute(f"UPDATE orders SET amount = {number}, at = 'infinity'")
        exact = JdbcSource("orders", orders.conn_id, texts=["amount", "at"]).open(context)
        row = read(spark, exact.read(first, second).arguments).frame.first()
        assert (row.amount, row.at) == (number, "infinity")
        orders.execute("ALTER TABLE orders DROP amount, DROP at")
        empty = read(spark, source.read(second, second).arguments).frame
        assert (empty.columns, empty.count()) == (["id", "note"], 0)


def test_a_number_is_not_rounded_whatever_the_database_says(spark: Any, tmp_path: Path) -> None:
    """0 was PostgreSQL's default before version 12."""
    store = PosixStore(tmp_path / "checkpoint")
    with orders_table() as orders:
        orders.execute("ALTER ROLE current_user SET extra_float_digits = 0")
        try:
            orders.execute("ALTER TABLE orders ADD amount double precision, ADD rate real")
            orders.execute("INSERT INTO orders (amount, rate) VALUES (0.30000000000000004, 1.2345678)")
            context = SourceContext(name="orders", log=store, state=store, clock_ms=lambda: 0)
            source = JdbcSource("orders", orders.conn_id).open(context)
            frame = read(spark, source.read(None, source.latest_offset(None)).arguments).frame
            assert [tuple(row) for row in frame.selectExpr("amount", "string(rate)").collect()] == [
                (0.30000000000000004, "1.2345678")
            ]
        finally:
            orders.execute("ALTER ROLE current_user RESET extra_float_digits")


def test_a_read_that_is_led_to_a_standby_fails(spark: Any, tmp_path: Path) -> None:
    """It would find fewer rows, if it lags, than were planned and are counted on the primary."""
    store = PosixStore(tmp_path / "checkpoint")
    with orders_table() as orders, postgres(is_replica=True) as standby:
        orders.execute("INSERT INTO orders (note) VALUES ('x')")
        context = SourceContext(name="orders", log=store, state=store, clock_ms=lambda: 0)
        source = JdbcSource("orders", orders.conn_id).open(context)
        planned = source.read(None, source.latest_offset(None)).arguments
        anywhere = {**planned, "table": "(SELECT 1 AS id, 'x' AS note) AS orders"}
        assert read(spark, anywhere).frame.collect() == [(1, "x")]
        there = f"jdbc:postgresql://127.0.0.1:{standby.port}/postgres"
        with pytest.raises(Exception, match=r"Spark was led to a standby, .* must lead to the primary of postgres"):
            read(spark, {**anywhere, "url": there}).frame.collect()


def test_rows_by_time_are_read_as_they_were_planned(spark: Any, tmp_path: Path) -> None:
    store = PosixStore(tmp_path / "checkpoint")
    with orders_table() as orders:
        orders.execute("ALTER TABLE orders ADD updated_at timestamptz DEFAULT clock_timestamp()")
        context = SourceContext(name="orders", log=store, state=store, clock_ms=lambda: 0)
        source = JdbcSource("orders", orders.conn_id, timestamp="updated_at", partitions=2).open(context)
        with orders.connect() as slow:
            slow.execute("INSERT INTO orders (note) VALUES ('late')")
            orders.execute("INSERT INTO orders (note) SELECT 'n' || n FROM generate_series(2, 9) AS n")
            first = source.latest_offset(None)
        orders.execute("INSERT INTO orders (note) VALUES ('new')")
        second = source.latest_offset(first)
        for start, end, ids in ((None, first, list(range(2, 10))), (first, second, [1, 10])):
            frame = read(spark, source.read(start, end).arguments).frame
            assert sorted(row.id for row in frame.collect()) == ids
            assert frame.rdd.getNumPartitions() == 2


@pytest.fixture
def far_from_utc(spark: Any) -> Iterator[None]:
    """The JVM, and Spark's session, in a zone that is not that of the server."""
    zones, before = spark._jvm.java.util.TimeZone, spark.conf.get("spark.sql.session.timeZone")
    java = zones.getDefault()
    zones.setDefault(zones.getTimeZone("America/New_York"))
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    yield
    zones.setDefault(java)
    spark.conf.set("spark.sql.session.timeZone", before)


def test_rows_of_mariadb_are_those_that_were_planned_wherever_spark_is(
    spark: Any, tmp_path: Path, far_from_utc: None
) -> None:
    store = PosixStore(tmp_path / "checkpoint")
    with orders_in_mariadb() as orders:
        context = SourceContext(name="orders", log=store, state=store, clock_ms=lambda: 0)
        source = JdbcSource("orders", orders.conn_id, database="mariadb", partitions=2).open(context)
        with orders.connect() as slow:
            slow.execute("INSERT INTO orders (note) VALUES ('late')")
            orders.execute("INSERT INTO orders (id, note) VALUES (2, 'n2'), (3, 'n3'), (5, 'n5'), (6, 'n6')")
            first = source.latest_offset(None)
        orders.execute("INSERT INTO orders (id, note) VALUES (4, 'filled'), (7, 'new')")
        planned = source.read(None, first)
        assert planned.requires.packages == (MARIADB_DRIVER,)
        frame = read(spark, planned.arguments).frame
        assert sorted((row.id, row.note) for row in frame.collect()) == [(id, f"n{id}") for id in (2, 3, 5, 6)]
        assert frame.rdd.getNumPartitions() == 2
        second = source.latest_offset(first)
        assert sorted(row.id for row in read(spark, source.read(first, second).arguments).frame.collect()) == [1, 4, 7]
        empty = read(spark, source.read(second, second).arguments).frame
        assert (empty.columns, empty.count()) == (["id", "note", "updated_at"], 0)

        orders.execute("UPDATE orders SET updated_at = CONCAT('2026-06-01 0', id, ':00:00.25')")
        timed = JdbcSource(
            "orders", orders.conn_id, database="mariadb", timestamp="updated_at", partitions=3, max_rows=4
        ).open(context)
        first = timed.latest_offset(None)
        for start, end, ids in ((None, first, [1, 2, 3, 4]), (first, timed.latest_offset(first), [5, 6, 7])):
            frame = read(spark, timed.read(start, end).arguments).frame
            rows = sorted((row.id, row.at) for row in frame.selectExpr("id", "unix_millis(updated_at) at").collect())
            assert rows == [(id, JUNE_MS + id * 3_600_000) for id in ids]
            assert frame.rdd.getNumPartitions() > 1


def test_all_committed_rows_of_mariadb_and_no_others_are_read_whatever_the_server_says(
    spark: Any, tmp_path: Path
) -> None:
    store = PosixStore(tmp_path / "checkpoint")
    with orders_in_mariadb() as orders:
        context = SourceContext(name="orders", log=store, state=store, clock_ms=lambda: 0)
        source = JdbcSource("orders", orders.conn_id, database="mariadb").open(context)
        orders.execute("INSERT INTO orders (note) VALUES ('a'), ('b'), ('c'), ('d')")
        first = source.latest_offset(None)
        settings = {"sql_select_limit": 2, "tx_isolation": "'READ-UNCOMMITTED'"}
        before = {name: orders.execute(f"SELECT @@global.{name}")[0][0] for name in settings}
        for name, value in settings.items():
            orders.execute(f"SET GLOBAL {name} = {value}")
        try:
            with orders.connect() as other:
                other.execute("DELETE FROM orders WHERE note = 'a'")
                other.execute("UPDATE orders SET note = 'x' WHERE note = 'b'")
                frame = read(spark, source.read(None, first).arguments).frame
                assert sorted(row.note for row in frame.collect()) == ["a", "b", "c", "d"]
        finally:
            for name, value in before.items():
                orders.execute(f"SET GLOBAL {name} = " + (f"'{value}'" if isinstance(value, str) else str(value)))


@pytest.mark.parametrize(
    ("setting", "value", "kind", "said"),
    [
        ("read_only", 1, "double", r"led to a replica.* must lead to the primary"),
        ("max_prepared_stmt_count", 0, "float", r"max_prepared_stmt_count.* FLOAT would be rounded"),
        ("max_prepared_stmt_count", 0, "double", None),
    ],
    ids=["a replica", "no statement is prepared for FLOAT", "no statement is prepared"],
)
def test_a_read_fails_where_mariadb_has_become_one_that_would_lose_rows_or_digits(
    spark: Any, tmp_path: Path, setting: str, value: int, kind: str, said: str | None
) -> None:
    store = PosixStore(tmp_path / "checkpoint")
    with orders_in_mariadb() as orders:
        context = SourceContext(name="orders", log=store, state=store, clock_ms=lambda: 0)
        orders.execute(f"ALTER TABLE orders ADD amount {kind}")
        orders.execute("INSERT INTO orders (amount) VALUES (1234567)")
        table = f"{orders.connection.schema}.orders"
        source = JdbcSource(table, orders.conn_id, database="mariadb").open(context)
        frame = read(spark, source.read(None, source.latest_offset(None)).arguments).frame.select("amount")
        assert frame.collect() == [(1234567.0,)]
        before = orders.execute(f"SELECT @@global.{setting}")[0][0]
        with closing(orders.at.connect()) as root, root.cursor() as cursor:
            cursor.execute(f"SET GLOBAL {setting} = {value}")
            try:
                with nullcontext() if said is None else pytest.raises(Exception, match=said):
                    assert frame.collect() == [(1234567.0,)]
            finally:
                cursor.execute(f"SET GLOBAL {setting} = {before}")


def test_a_read_that_is_led_to_a_replica_of_mariadb_fails_though_that_takes_writes(spark: Any, tmp_path: Path) -> None:
    store = PosixStore(tmp_path / "checkpoint")
    with ExitStack() as stack:
        primary = stack.enter_context(mariadb(**{"log-bin": "log", "server-id": "1"}))
        replica = stack.enter_context(mariadb(**{"server-id": "2"}))
        cursor = stack.enter_context(closing(replica.connect())).cursor()
        with orders_in_mariadb(primary) as orders:
            orders.execute("INSERT INTO orders (note) VALUES ('x')")
            context = SourceContext(name="orders", log=store, state=store, clock_ms=lambda: 0)
            source = JdbcSource("orders", orders.conn_id, database="mariadb").open(context)
            planned = source.read(None, source.latest_offset(None)).arguments
            there = f"jdbc:mysql://127.0.0.1:{replica.port}/mysql?permitMysqlScheme"
            led = {**planned, "url": there, "table": "(SELECT 1 AS id, 'x' AS note) AS orders"}
            assert read(spark, led).frame.collect() == [(1, "x")]
            orders.execute("RESET MASTER")  # what the server itself has begun with, the replica has
            cursor.execute(
                f"CHANGE MASTER TO master_host = '127.0.0.1', master_port = {primary.port}, master_user = 'root'"
            )
            cursor.execute("START SLAVE")
            try:
                wait_until(
                    lambda: cursor.execute("SHOW GLOBAL STATUS WHERE Variable_name = 'Slaves_running' AND Value") > 0
                )
                with pytest.raises(Exception, match=r"led to a replica.* must lead to the primary"):
                    read(spark, led).frame.collect()
            finally:
                cursor.execute("STOP SLAVE")


@pytest.mark.parametrize(("database", "kind"), KINDS)
def test_rows_of_a_data_interval_are_those_that_it_took_wherever_spark_is(
    spark: Any, tmp_path: Path, far_from_utc: None, database: str, kind: str
) -> None:
    store = PosixStore(tmp_path / "checkpoint")
    with orders_table() if database == "postgres" else orders_in_mariadb() as orders:
        orders.execute("ALTER TABLE orders DROP COLUMN IF EXISTS updated_at")
        orders.execute(f"ALTER TABLE orders ADD updated_at {kind} NULL")
        zone = "+00" if kind == "timestamptz" else ""
        for id in range(1, 9):
            orders.execute(f"INSERT INTO orders (updated_at) VALUES ('2026-06-01 0{id}:00:00.25{zone}')")
        definition = JdbcSource(
            "orders", orders.conn_id, database=database, timestamp="updated_at", partitions=2, max_rows=2
        )

        def opened(lane: str = LIVE) -> OpenSource:
            return definition.open(SourceContext(name="orders", log=store, state=store, clock_ms=lambda: 0, lane=lane))

        def rows(lane: str, start: str | None, end: str | None) -> list[int]:
            frame = read(spark, opened(lane).read(start, end).arguments).frame
            return sorted(row.id for row in frame.collect())

        first = opened().latest_offset(None)
        june = Interval(start_ms=JUNE_MS, end_ms=JUNE_MS + 4 * 3_600_000)
        took = opened("interval-a").plan_interval(june, {})
        second = opened().latest_offset(first)
        assert rows("interval-a", *took) == [3]
        assert [rows(LIVE, None, first), rows(LIVE, first, second)] == [[1, 2], [4, 5]]


def test_values_of_mariadb_are_what_they_were(spark: Any, tmp_path: Path, far_from_utc: None) -> None:
    columns = {
        "a": ("tinyint(1)", "2", 2),
        "b": ("bigint unsigned", "18446744073709551615", 18446744073709551615),
        "c": ("tinyint unsigned", "200", 200),
        "d": ("decimal(38, 10)", "1234567890123456789012345678.0123456789", None),
        "e": ("year", "2026", 2026),
        "f": ("decimal(65, 30)", "12345678901234567890123456789012345.000000000000000000000000000001", None),
        "h": ("varchar(9) collate utf8mb4_bin", "'é𝄞'", "é𝄞"),
        "i": ("varbinary(3)", "x'00ff10'", bytearray(b"\x00\xff\x10")),
        "j": ("json", "'{}'", "{}"),
        "k": ("bit(9)", "b'100000001'", "b'100000001'"),
        "q": ("bit(1)", "b'1'", True),
        "l": ("time(3)", "'-23:10:00.5'", "-23:10:00.500000"),
        "m": ("date", "'1000-01-01'", None),
        "n": ("mediumint unsigned", "16777215", 16777215),
        "o": ("int unsigned", "4294967295", 4294967295),
        "p": ("datetime(6)", "'2026-06-01 10:00:00.123456'", None),
        "r": ("float", "1234567", 1234567.0),
        "s": ("float unsigned", "16777215", 16777215.0),
        "t": ("datetime", "'0000-00-00'", "0000-00-00 00:00:00"),
    }
    with orders_in_mariadb() as orders:
        orders.execute("DROP TABLE orders")
        made = ", ".join(f"{name} {kind}" for name, (kind, _, _) in columns.items())
        orders.execute(f"CREATE TABLE orders (id int AUTO_INCREMENT PRIMARY KEY, {made})")
        values = ", ".join(value for _, value, _ in columns.values())
        orders.execute(f"SET STATEMENT sql_mode = '' FOR INSERT INTO orders VALUES (1, {values})")
        store = PosixStore(tmp_path / "checkpoint")
        context = SourceContext(name="orders", log=store, state=store, clock_ms=lambda: 0)
        source = JdbcSource("orders", orders.conn_id, database="mariadb", texts=["f", "k", "l", "t"]).open(context)
        frame = read(spark, source.read(None, source.latest_offset(None)).arguments).frame
        row = frame.first()
        print(frame.schema.simpleString(), row)
        assert {name: row[name] for name, (_, _, value) in columns.items() if value is not None} == {
            name: value for name, (_, _, value) in columns.items() if value is not None
        }
        assert str(row.d) == columns["d"][1]
        assert row.f == columns["f"][1]
