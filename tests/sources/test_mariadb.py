"""Rows of a table of a real MariaDB, while others write: each is read once, whenever its transaction commits."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_microbatch.exceptions import DefinitionError, SourceChangedError, SourceError
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.sources.jdbc import DRIVER, MARIADB_DRIVER, JdbcSource, numbered
from airflow_provider_microbatch.sources.jdbc.mariadb import open as by_number
from airflow_provider_microbatch.sources.jdbc.mariadb import running, spans
from airflow_provider_microbatch.sources.jdbc.mariadb.session import Session
from airflow_provider_microbatch.sources.jdbc.mariadb.times import before_all_later
from airflow_provider_microbatch.sources.jdbc.offset import Place
from tests.sources.beside_writers import read_beside
from tests.support.mariadb import mariadb, server
from tests.support.orders_in_mariadb import OrdersInMariaDb, orders_in_mariadb

pytestmark = pytest.mark.slow

INSERT = "INSERT INTO orders (note) VALUES ('x')"
BEFORE = "INSERT INTO orders (updated_at) VALUES ('2026-01-01')"  # a transaction's start is known to the second
AGAIN = [("number", how) for how in ("TRUNCATE TABLE orders", "OPTIMIZE TABLE orders", "RENAME")]
BY = {"number": {}, "time": {"timestamp": "updated_at"}}


@pytest.fixture
def orders() -> Iterator[OrdersInMariaDb]:
    with orders_in_mariadb() as table:
        yield table


@pytest.fixture
def opened(tmp_path: Path, orders: OrdersInMariaDb) -> Callable[..., Any]:
    return partial(orders.opened, tmp_path / "checkpoint")


def ids(orders: OrdersInMariaDb, source: OpenSource, start: str | None, end: str | None) -> list[int]:
    return orders.ids(source, start, end)


def all_batches(orders: OrdersInMariaDb, source: OpenSource) -> list[list[int]]:
    position, found = None, []
    while (end := source.latest_offset(position)) != position:
        found.append(ids(orders, source, position, end))
        position = end
    return found


def test_a_number_that_is_committed_behind_a_later_one_is_read_by_the_next_batch_and_once(
    opened: Any, orders: OrdersInMariaDb
) -> None:
    source = opened(late_seconds=3600)
    with orders.connect() as slow:
        slow.execute(INSERT)
        orders.execute(INSERT)
        first = source.latest_offset(source.initial_offset())
        assert ids(orders, source, None, first) == [2]
        assert not source.has_new(first)
        assert source.latest_offset(first) == first
    assert source.has_new(first)
    orders.execute(INSERT)
    second = source.latest_offset(first)
    assert ids(orders, source, first, second) == [1, 3]
    assert ids(orders, source, None, first) == [2], "as it was planned, although the row of the gap is there now"
    assert not source.has_new(second)
    assert [source.describe(*range).rows for range in ((None, first), (first, second))] == [1, 2]
    assert (source.lag(first).rows, source.lag(second).rows) == (2, 0)


def test_a_number_is_waited_for_as_long_as_a_transaction_of_then_runs_and_no_longer(
    opened: Any, orders: OrdersInMariaDb
) -> None:
    source, position = opened(), None
    with orders.connect() as slow:
        slow.execute(INSERT)
        for _ in range(3):
            orders.execute(INSERT)
            position = source.latest_offset(position)
        assert [(gap.first, gap.last) for gap in Place.of(position).gaps] == [(1, 1)]
        slow.execute("ROLLBACK")
    orders.execute(INSERT)
    end = source.latest_offset(position)
    assert Place.of(end).gaps == ()
    orders.execute("INSERT INTO orders (id) VALUES (1)")
    assert ids(orders, source, position, end) == [5], "what is written by hand changes no batch that was planned"


def test_a_transaction_that_is_prepared_is_waited_for_though_its_session_has_ended(
    opened: Any, orders: OrdersInMariaDb
) -> None:
    xid = orders.connection.schema
    with closing(server().connect(xid)) as session, session.cursor() as cursor:
        for statement in (f"XA START '{xid}'", INSERT, f"XA END '{xid}'", f"XA PREPARE '{xid}'"):
            cursor.execute(statement)
    source, position = opened(), None
    for _ in range(2):
        orders.execute(INSERT)
        position = source.latest_offset(position)
    assert [gap.first for gap in Place.of(position).gaps] == [1]
    with closing(server().connect(xid)) as session, session.cursor() as cursor:
        cursor.execute(f"XA COMMIT '{xid}'")
    assert ids(orders, source, position, source.latest_offset(position)) == [1]


def test_a_transaction_that_only_reads_is_not_waited_for(opened: Any, orders: OrdersInMariaDb) -> None:
    with orders.connect() as reader:
        reader.execute("SELECT * FROM orders")
        orders.execute("INSERT INTO orders (id) VALUES (2)")
        source = opened()
        first = source.latest_offset(None)
        orders.execute(INSERT)
        assert Place.of(source.latest_offset(first)).gaps == ()
        assert all_batches(orders, opened(timestamp="updated_at")) == [[2, 3]]


def test_a_row_of_an_earlier_time_that_is_committed_later_is_waited_for_and_read_once(
    opened: Any, orders: OrdersInMariaDb
) -> None:
    source = opened(timestamp="updated_at")
    orders.execute(BEFORE)
    with orders.connect() as slow:
        slow.execute(INSERT)
        orders.execute(INSERT)
        first = source.latest_offset(None)
        assert ids(orders, source, None, first) == [1]
        assert not source.has_new(first)
        assert source.latest_offset(first) == first
        assert source.lag(first).rows == 1
    assert source.has_new(first)
    second = source.latest_offset(first)
    assert ids(orders, source, first, second) == [2, 3]
    assert not source.has_new(second)


def test_a_list_of_transactions_that_is_older_than_the_plan_is_not_believed(
    opened: Any, orders: OrdersInMariaDb
) -> None:
    source = opened(timestamp="updated_at")
    orders.execute(BEFORE)
    orders.execute("SELECT count(*) FROM information_schema.innodb_trx")  # InnoDB keeps this answer for a while
    with orders.connect() as slow:
        slow.execute(INSERT)
        orders.execute(INSERT)
        assert ids(orders, source, None, source.latest_offset(None)) == [1]


def test_a_list_of_transactions_that_never_gets_new_is_said(
    opened: Any, orders: OrdersInMariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_PATIENCE_SECONDS", 0.0)
    orders.execute(INSERT)
    looked, over = threading.Event(), threading.Event()

    def watch() -> None:
        with orders.connect() as session:
            while not over.wait(0.01):
                session.execute("SELECT count(*) FROM information_schema.innodb_trx")
                looked.set()

    watching = threading.Thread(target=watch)
    watching.start()
    looked.wait(60)
    try:
        with pytest.raises(SourceError, match=r"'orders': .*more often than ten times a second"):
            opened(timestamp="updated_at").latest_offset(None)
    finally:
        over.set()
        watching.join()


@pytest.mark.parametrize("by", BY)
def test_writers_at_once_and_every_row_is_read_once(opened: Any, orders: OrdersInMariaDb, by: str) -> None:
    source, over = opened(max_rows=20, **BY[by]), threading.Event()

    def write(seed: int) -> None:
        chance = random.Random(seed)
        with orders.connect() as session:
            for _ in range(8):
                for _ in range(chance.randint(1, 4)):
                    session.execute(INSERT)
                over.wait(chance.random() / 20)  # its numbers are taken, and nobody sees them
                session.execute("ROLLBACK" if chance.random() < 0.2 else "COMMIT")
                session.execute("BEGIN")

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    ranges = read_beside(writers, source, lambda start, end: ids(orders, source, start, end))
    read = Counter(id for _, _, found in ranges for id in found)
    assert read == Counter(id for (id,) in orders.execute("SELECT id FROM orders"))
    assert len(ranges) > 2
    for start, end, found in ranges:
        assert ids(orders, source, start, end) == found


def test_more_missing_numbers_than_can_be_listed_are_waited_for_in_turn(
    opened: Any, orders: OrdersInMariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_number, "MOST_GAPS", 2)
    orders.execute("INSERT INTO orders (id) VALUES (1), (3), (5), (6), (8), (10), (11)")
    patient, source = opened(late_seconds=3600), opened()
    first = patient.latest_offset(None)
    assert ids(orders, patient, None, first) == [1, 3, 5, 6]
    assert (patient.has_new(first), patient.latest_offset(first)) == (False, first)
    orders.execute("INSERT INTO orders (id) VALUES (2)")
    second = patient.latest_offset(first)
    assert ids(orders, patient, first, second) == [2, 8]
    assert all_batches(orders, source) == [[1, 2, 3, 5, 6, 8], [10, 11]]


def test_of_many_missing_numbers_a_plan_fetches_no_more_than_tell_where_it_ends(
    opened: Any, orders: OrdersInMariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched, rows = [], Session.rows
    monkeypatch.setattr(by_number, "MOST_GAPS", 2)
    monkeypatch.setattr(numbered, "MOST_GAPS", 2)
    monkeypatch.setattr(Session, "rows", lambda *asked: fetched.append(rows(*asked)) or fetched[-1])
    orders.execute("INSERT INTO orders (id) SELECT 2 * seq FROM seq_1_to_50")
    source = opened()
    end = source.latest_offset(None)
    assert max(len(found) for found in fetched) == 3
    assert (ids(orders, source, None, end), source.describe(None, end).rows) == ([2, 4], 2)


def test_a_limit_cuts_among_equal_times_by_the_key_and_takes_them_whole_without_one(
    opened: Any, orders: OrdersInMariaDb
) -> None:
    orders.execute("INSERT INTO orders (updated_at) VALUES " + ", ".join(["('2026-01-01 10:00:00.5')"] * 5))
    orders.execute("INSERT INTO orders (updated_at) VALUES ('2026-01-01 10:00:01'), ('2026-01-01 10:00:02')")
    keyed = opened(timestamp="updated_at", max_rows=3, partitions=2)
    assert all_batches(orders, keyed) == [[1, 2, 3], [4, 5, 6], [7]]
    whole = opened(timestamp="updated_at", column=None, max_rows=3, partitions=3)
    assert all_batches(orders, whole) == [[1, 2, 3, 4, 5], [6, 7]]
    assert len(whole.read(None, whole.latest_offset(None)).arguments["predicates"]) == 1
    start = '{"t": "2026-01-01 12:00:01+02"}'
    assert ids(orders, keyed, start, keyed.latest_offset(start)) == [7]
    assert all_batches(orders, opened(max_rows=5)) == [[1, 2, 3, 4, 5], [6, 7]]


def test_rows_without_a_time_or_of_the_future_are_not_read_and_hold_nothing_up(
    opened: Any, orders: OrdersInMariaDb
) -> None:
    orders.execute("ALTER TABLE orders MODIFY updated_at datetime(3) NULL")
    orders.execute("SET STATEMENT sql_mode = '' FOR INSERT INTO orders (updated_at) VALUES (NULL), (0), "
                   "('2999-01-01'), ('2026-01-01 10:00')")  # fmt: skip
    source = opened(timestamp="updated_at")
    assert all_batches(orders, source) == [[4]]
    assert "2 rows" in (source.not_read() or "")
    with pytest.raises(SourceError, match="future"):
        source.check_offset('{"t": "2998-01-01 00:00:00"}')


def test_an_updated_row_comes_again_and_is_missed_where_it_was(opened: Any, orders: OrdersInMariaDb) -> None:
    orders.execute("INSERT INTO orders (updated_at) VALUES ('2026-01-01 10:00'), ('2026-01-01 11:00')")
    source, skips = (opened(timestamp="updated_at", on_missing=how) for how in ("fail", "skip"))
    first = source.latest_offset(None)
    orders.execute("UPDATE orders SET note = 'new' WHERE id = 1")
    with pytest.raises(SourceChangedError, match=r"'orders': 1 of 2 rows .* changed since.*on_missing='skip'"):
        source.read(None, first)
    assert ids(orders, skips, None, first) == [2]
    assert ids(orders, source, first, source.latest_offset(first)) == [1]


def test_a_row_that_nobody_waited_for_gets_into_no_batch_in_silence(opened: Any, orders: OrdersInMariaDb) -> None:
    orders.execute("INSERT INTO orders (updated_at) VALUES ('2026-01-01 10:00'), ('2026-01-01 11:00')")
    source = opened(timestamp="updated_at", on_missing="skip")
    end = source.latest_offset(None)
    told = source.read(None, end).arguments["told"]
    orders.execute("INSERT INTO orders (updated_at) VALUES ('2026-01-01 10:30')")
    late = r"3 rows .* 2 were planned.*late_seconds.*rewind.*set-offset .*--allow-reread"
    with pytest.raises(SourceChangedError, match=late):
        source.read(None, end)
    with pytest.raises(SourceChangedError, match=late):
        source.verify(None, end, told)
    orders.execute("DELETE FROM orders WHERE id = 1")  # as many rows, and others
    assert "late_seconds" in source.not_replayable(None, end)
    assert all_batches(orders, source) == [[2, 3]]


@pytest.mark.parametrize(("by", "how"), [*AGAIN, ("time", "RENAME")])
def test_a_table_that_is_another_one_is_named_with_both_ways_on(
    opened: Any, orders: OrdersInMariaDb, by: str, how: str
) -> None:
    fill = "INSERT INTO orders (note) VALUES ('a'), ('b'), ('c')"
    orders.execute(fill)
    source = opened(**BY[by])
    end = source.latest_offset(None)
    told = source.read(None, end).arguments["told"]
    if how == "RENAME":
        orders.execute("RENAME TABLE orders TO old")
        orders.execute("CREATE TABLE orders LIKE old")
    else:
        orders.execute(how)
    if how != "OPTIMIZE TABLE orders":
        orders.execute(fill)
    again = r"source 'orders': orders_\d+\.orders was made again.* set-offset .*--offset '.*' --allow-skip"
    for look in (source.has_new, source.latest_offset, source.lag):
        with pytest.raises(SourceError, match=again):
            look(end)
    with pytest.raises(SourceChangedError, match=again):
        source.verify(None, end, told)
    assert "was made again" in source.not_replayable(None, end)
    with pytest.raises(SourceError, match=again) as said:
        source.latest_offset(end)
    offsets = [part.partition("'")[0] for part in str(said.value).split("--offset '")[1:]]
    begin, here = (offset for offset in offsets)
    for by_hand, rest in ((begin, 3), (here, 0 if how == "OPTIMIZE TABLE orders" or by == "number" else 3)):
        assert (source.is_after(by_hand, end), source.is_after(end, by_hand)) == (True, False)
        following = source.latest_offset(by_hand)
        assert len(ids(orders, source, by_hand, following)) == rest
        assert not source.has_new(following)


def test_what_leaves_a_table_the_same_is_no_other_table(opened: Any, orders: OrdersInMariaDb) -> None:
    orders.execute(INSERT)
    source = opened()
    end = source.latest_offset(None)
    for statement in ("ALTER TABLE orders ADD more text", "ANALYZE TABLE orders", "DELETE FROM orders"):
        orders.execute(statement)
        assert not source.has_new(end)


def test_a_server_whose_names_differ_by_no_case_is_asked_by_any(tmp_path: Path) -> None:
    with mariadb(**{"lower-case-table-names": "1"}) as own, orders_in_mariadb(own) as orders:
        orders.execute("INSERT INTO orders (note) VALUES ('a')")
        source = orders.opened(tmp_path / "checkpoint", "Orders")
        end = source.latest_offset(None)
        assert orders.ids(source, None, end) == [1]
        again = orders.opened(tmp_path / "checkpoint", f"{str(orders.connection.schema).upper()}.ORDERS")
        assert again.latest_offset(end) == end


def test_a_table_of_partitions_is_read_as_one(opened: Any, orders: OrdersInMariaDb) -> None:
    orders.execute("ALTER TABLE orders PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (3))")
    orders.execute("INSERT INTO orders (note) VALUES ('a'), ('b')")
    source = opened()
    end = source.latest_offset(None)
    orders.execute("ALTER TABLE orders ADD PARTITION (PARTITION b VALUES LESS THAN MAXVALUE)")
    orders.execute(INSERT)
    assert ids(orders, source, None, end) == [1, 2]
    assert ids(orders, source, end, source.latest_offset(end)) == [3]
    orders.execute("TRUNCATE TABLE orders")
    orders.execute(INSERT)
    with pytest.raises(SourceError, match=r"begins again.* 1, and was read up to 2"):
        source.latest_offset(end)


@pytest.mark.parametrize("by", BY)
def test_names_are_names_and_no_sql(opened: Any, orders: OrdersInMariaDb, by: str) -> None:
    orders.execute("CREATE TABLE `Ord``er 50%` (`x; DROP %s` int PRIMARY KEY, `a'b` timestamp(6) DEFAULT now(6))")
    orders.execute("CREATE TABLE `ORD``ER 50%` LIKE `Ord``er 50%`")
    orders.execute("INSERT INTO `Ord``er 50%` (`x; DROP %s`) VALUES (7)")
    timestamp = {"timestamp": "a'b"} if by == "time" else {}
    source = opened(table="Ord`er 50%", column="x; DROP %s", **timestamp)
    source.check()
    end = source.latest_offset(None)
    assert source.describe(None, end).rows == 1
    assert source.read(None, end).arguments["table"] == "`Ord``er 50%`"
    assert not source.has_new(end)


def test_who_may_not_see_what_runs_is_told_what_to_grant(opened: Any, orders: OrdersInMariaDb) -> None:
    orders.execute(INSERT)
    schema = orders.connection.schema
    orders.execute(f"CREATE USER {schema}@'%'")
    orders.execute(f"GRANT SELECT ON {schema}.* TO {schema}@'%'")
    orders.connection = replace(orders.connection, login=schema)
    source = opened(timestamp="updated_at")
    for look in (source.has_new, source.latest_offset):
        with pytest.raises(SourceError, match=r"GRANT PROCESS ON \*\.\* TO"):
            look(None)
    orders.execute(f"GRANT PROCESS ON *.* TO {schema}@'%'")
    assert all_batches(orders, source) == [[1]]


def test_what_cannot_be_read_is_said(opened: Any, orders: OrdersInMariaDb) -> None:
    orders.execute("CREATE VIEW seen AS SELECT * FROM orders")
    orders.execute("CREATE TABLE plain (id int PRIMARY KEY) ENGINE = Aria")
    orders.execute("ALTER TABLE orders ADD amount decimal(39, 2), ADD big decimal(65, 30), ADD n int, ADD t time, "
                   "ADD f bit(1), ADD b bit(2), ADD d decimal(38, 38)")  # fmt: skip
    orders.execute("INSERT INTO orders (updated_at) VALUES ('2026-01-01')")
    for table in ("seen", "plain"):
        with pytest.raises(SourceError, match=rf"source 'orders': `{table}` is no table of InnoDB"):
            opened(table=table).check()
    for ask in (opened().check, lambda: opened().latest_offset(None), lambda: opened().has_new(None)):
        with pytest.raises(SourceError, match=r"'orders': .*amount, big, t, b\. .*texts=\['amount', 'big', 't', 'b'\]"):
            ask()
    opened(texts=["amount", "big", "t", "b"]).check()
    timed = {"timestamp": "updated_at", "texts": ["amount", "big", "t", "b"]}
    for options, why in (
        ({"column": "note"}, r"`note` of `orders` is not of whole numbers"),
        ({"column": "missing"}, r"MariaDB says: 1054 Unknown column"),
        ({**timed, "timestamp": "note"}, "is not of timestamps"),
        ({**timed, "column": "note"}, "not of whole numbers; column=None does"),
        ({**timed, "column": "n"}, "may be null: make it NOT NULL, or column=None"),
    ):
        with pytest.raises(SourceError, match=why):
            opened(**{"texts": ["amount", "big", "t", "b"], **options}).check()
    with pytest.raises(SourceError, match=r"'orders': .* no place"):
        opened().latest_offset('{"n": 9, "gaps": [[5, 4, 0, 3]]}')
    with pytest.raises(SourceError, match="no time that MariaDB has"):
        opened(**timed).latest_offset('{"t": "4714-11-24 00:00:00 BC"}')
    with pytest.raises(SourceError, match=r"'orders': MariaDB says: 1146 .*gone"):
        opened(table="gone").latest_offset(None)


def test_another_kind_of_server_or_connection_is_refused(opened: Any, orders: OrdersInMariaDb) -> None:
    with closing(server().connect()) as root, root.cursor() as cursor:
        cursor.execute("SET GLOBAL read_only = 1")
        try:
            with pytest.raises(SourceError, match="must lead to the primary"):
                opened().has_new(None)
        finally:
            cursor.execute("SET GLOBAL read_only = 0")
    tls = {"ssl": {"ca": "/etc/ca.pem"}}
    for changed, why in (
        ({"conn_type": "postgres"}, r"'orders_db' is of type 'postgres', and database='mariadb' takes .*'mysql'"),
        ({"extra": {"ssl_mode": "REQUIRED"}}, r"other settings of TLS than .*'ssl': .*'ca'"),
        ({"extra": {"ssl": {"ca": "x", "key": "y"}}}, "other settings of TLS"),
        ({"extra": tls}, r"No such file|certificate"),
    ):
        before = orders.connection
        orders.connection = replace(before, **changed)
        with pytest.raises((SourceError, OSError), match=why):
            opened().has_new(None)
        orders.connection = before
    with pytest.raises(DefinitionError, match=r"database must be 'postgres' or 'mariadb', not 'mysql'"):
        JdbcSource("orders", "orders_db", database="mysql")
    assert [JdbcSource("o", "c", database=of).driver for of in ("postgres", "mariadb")] == [DRIVER, MARIADB_DRIVER]
    assert JdbcSource("o", "c", database="mariadb", driver=None).driver is None


PUT_BACK = [
    ("UTC", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
]
"""When clocks are put back."""


@given(
    where=st.sampled_from(PUT_BACK),
    seconds=st.integers(-14_400, 3600),
    later=st.lists(st.integers(0, 14_400), min_size=10, max_size=10),
    digits=st.sampled_from([0, 3, 6]),
)
@settings(max_examples=100)
def test_no_row_that_is_written_later_has_a_time_before_that_of_the_plan(
    where: tuple[str, datetime], seconds: int, later: list[int], digits: int
) -> None:
    zone, ms = ZoneInfo(where[0]), int(1000 * where[1].timestamp()) + 1000 * seconds + 537

    def local(ms: int) -> datetime:
        return datetime.fromtimestamp(ms / 1000, zone).replace(tzinfo=None)

    until = before_all_later(ms, zone, digits=digits)
    for more in later:
        written = local(ms + 1000 * more + 1)
        unit = 10 ** (6 - digits)
        assert written.replace(microsecond=written.microsecond // unit * unit).isoformat(" ", "microseconds") >= until
    assert datetime.fromisoformat(until) >= local(ms) - timedelta(hours=1, seconds=1)


@given(data=st.data())
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_spans_are_looked_up_by_their_bounds(
    orders: OrdersInMariaDb, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    monkeypatch.setattr(spans, "_FAR", 4)
    monkeypatch.setattr(spans, "_MOST_RUNS", 2)
    bounds = sorted(data.draw(st.sets(st.integers(1, 60), min_size=2, max_size=20)))
    asked = [(first, last - 1) for first, last in zip(bounds[::2], bounds[1::2], strict=False)]
    column = "cast(n AS unsigned)" if data.draw(st.booleans()) else "n"
    numbers = f"SELECT n FROM (SELECT seq AS n FROM seq_1_to_60) AS one WHERE {spans.within(column, asked)}"
    assert [n for (n,) in orders.execute(f"{numbers} ORDER BY n")] == [
        n for first, last in asked for n in range(first, last + 1)
    ]
