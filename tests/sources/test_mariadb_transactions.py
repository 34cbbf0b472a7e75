"""Of which transactions of a real MariaDB it is not known when they began, and how long each is waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.jdbc.mariadb import running, table, timed_table
from airflow_provider_microbatch.sources.jdbc.mariadb.running import now
from airflow_provider_microbatch.sources.jdbc.offset import Place
from tests.support.mariadb import server
from tests.support.orders_in_mariadb import OrdersInMariaDb, orders_in_mariadb

pytestmark = pytest.mark.slow

INSERT = "INSERT INTO orders (note) VALUES ('x')"
BEFORE = "INSERT INTO orders (updated_at) VALUES ('2026-01-01')"  # a transaction's start is known to the second


@pytest.fixture
def orders() -> Iterator[OrdersInMariaDb]:
    with orders_in_mariadb() as made:
        yield made


@pytest.fixture
def opened(tmp_path: Path, orders: OrdersInMariaDb) -> Callable[..., Any]:
    return partial(orders.opened, tmp_path / "checkpoint")


def of_xa(orders: OrdersInMariaDb, *statements: str) -> None:
    """Run statements in a session that ends; ``XA`` in them is followed by what to do with its transaction."""
    database = orders.connection.schema
    with closing(server().connect(database)) as session, session.cursor() as cursor:
        for statement in statements:
            cursor.execute(f"{statement} '{database}'" if statement.startswith("XA") else statement)


def test_a_transaction_that_is_prepared_is_waited_for_though_the_server_began_again(
    opened: Any, orders: OrdersInMariaDb
) -> None:
    """InnoDB says of it that it began with the server."""
    numbered, timed = opened(), opened(timestamp="updated_at")
    orders.execute(BEFORE)
    time = timed.latest_offset(None)
    of_xa(orders, "XA START", INSERT, "XA END", "XA PREPARE")
    orders.execute(INSERT)
    number = numbered.latest_offset(None)
    assert (orders.ids(numbered, None, number), orders.ids(timed, None, time)) == ([1, 3], [1])
    server().restart()
    orders.execute(INSERT)
    following = numbered.latest_offset(number)
    assert [gap.first for gap in Place.of(following).gaps] == [2]
    assert timed.latest_offset(time) == time, "its rows are older than the server"
    of_xa(orders, "XA COMMIT")
    assert orders.ids(numbered, following, numbered.latest_offset(following)) == [2]
    assert orders.ids(timed, time, timed.latest_offset(time)) == [2, 3, 4]


def test_a_transaction_that_began_by_a_clock_that_was_put_back_since_is_waited_for(
    opened: Any, orders: OrdersInMariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = opened()
    with orders.connect() as slow:
        slow.execute(INSERT)
        orders.execute(INSERT)
        for module in (table, running):
            monkeypatch.setattr(module, "now", an_hour_ago)
        first = source.latest_offset(None)
        orders.execute(INSERT)
        second = source.latest_offset(first)
        assert [gap.first for gap in Place.of(second).gaps] == [1]
    assert orders.ids(source, second, source.latest_offset(second)) == [1]


def test_a_clock_that_was_put_back_behind_what_was_read_stops_the_plan_and_the_sensor(
    opened: Any, orders: OrdersInMariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes then has a time at or before the position: it would be in no batch."""
    source = opened(timestamp="updated_at")
    orders.execute(INSERT)
    end = source.latest_offset(None)
    monkeypatch.setattr(timed_table, "now", an_hour_ago)
    for look in (source.has_new, source.latest_offset):
        with pytest.raises(SourceError, match=r"orders.*clock.*put back.*set-offset .*--allow-reread"):
            look(end)
    assert source.latest_offset(None) is None


def test_a_zone_whose_clocks_are_put_back_is_no_clock_of_the_server_that_was_put_back(
    opened: Any, orders: OrdersInMariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For some hours rows are read an hour later: what was read before that lies ahead of what is read now."""
    orders.execute("ALTER TABLE orders MODIFY updated_at datetime(6)")
    orders.execute("INSERT INTO orders (updated_at) VALUES ('2026-10-24 23:58')")
    source = opened(timestamp="updated_at", time_zone="Europe/Berlin", late_seconds=60)

    clock_is_at(monkeypatch, datetime(2026, 10, 24, 21, 59, 59))
    end = source.latest_offset(None)
    assert orders.ids(source, None, end) == [1]
    clock_is_at(monkeypatch, datetime(2026, 10, 24, 22, 0, 1))
    assert (source.has_new(end), source.latest_offset(end), source.lag(end).rows) == (False, end, 0)
    clock_is_at(monkeypatch, datetime(2026, 10, 25, 0, 59, 59))  # clocks show 2:59:59
    by_hand = '{"t": "2026-10-25 02:59:58"}'
    source.check_offset(by_hand)
    clock_is_at(monkeypatch, datetime(2026, 10, 25, 1, 0, 1))  # and 2:00:01
    assert source.latest_offset(by_hand) == by_hand
    source.check_offset(by_hand)
    with pytest.raises(SourceError, match="lies in the future"):
        source.check_offset('{"t": "2026-10-25 03:00:02"}')
    clock_is_at(monkeypatch, datetime(2026, 10, 24, 20, 0))
    with pytest.raises(SourceError, match=r"clock says 2026-10-24 22:00.*put back.*set-offset"):
        source.latest_offset(end)


def test_a_clock_that_was_put_back_in_the_hour_that_a_zone_has_twice_stops_the_plan(
    opened: Any, orders: OrdersInMariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clocks have shown later times, an hour before: nothing of then was read, and what is written now would count as
    read."""
    orders.execute("ALTER TABLE orders MODIFY updated_at datetime(6)")
    orders.execute("INSERT INTO orders (updated_at) VALUES ('2026-10-25 02:45')")
    source = opened(timestamp="updated_at", time_zone="Europe/Berlin", late_seconds=60)
    clock_is_at(monkeypatch, datetime(2026, 10, 25, 1, 50))  # clocks show 2:50, the second time
    end = source.latest_offset(None)
    assert orders.ids(source, None, end) == [1]
    clock_is_at(monkeypatch, datetime(2026, 10, 25, 1, 30))
    for look in (source.has_new, source.latest_offset):
        with pytest.raises(SourceError, match=r"clock says 2026-10-25 02:30:00\.000000: it was put back.* set-offset"):
            look(end)
    with pytest.raises(SourceError, match=r"clock says 2026-10-25 02:30:00\.000000: it was put back"):
        source.latest_offset('{"t": "2026-10-25 03:00:01"}')


def clock_is_at(monkeypatch: pytest.MonkeyPatch, utc: datetime) -> None:
    """Have the server's clock stand."""
    for module in (timed_table, running):
        monkeypatch.setattr(module, "now", lambda session: int(1000 * utc.replace(tzinfo=UTC).timestamp()))


def an_hour_ago(session: Any) -> int:
    """What a clock says that was put back."""
    return now(session) - 3_600_000


@contextmanager
def waiting(orders: OrdersInMariaDb, statement: str) -> Iterator[None]:
    """Inside, a statement runs in a session of its own, and waits with ``get_lock('go', 60)`` before it writes."""
    running = threading.Thread(target=orders.execute, args=(statement,))
    with closing(server().connect(orders.connection.schema)) as session, session.cursor() as cursor:
        cursor.execute("SELECT get_lock('go', 0)")
        running.start()
        look = "SELECT count(*) FROM information_schema.processlist WHERE state = 'User lock'"
        deadline = time.monotonic() + 30
        while cursor.execute(look) and cursor.fetchone() != (1,):
            assert time.monotonic() < deadline
        yield
    running.join()


def is_waited_for(opened: Any, orders: OrdersInMariaDb, statement: str) -> None:
    """No row that comes while it runs is read before its own."""
    source = opened(timestamp="updated_at")
    orders.execute(BEFORE)
    before = source.latest_offset(None)
    with waiting(orders, statement):
        orders.execute(INSERT)
        assert source.has_new(before) is False
        assert source.latest_offset(before) == before
    assert orders.ids(source, before, source.latest_offset(before)) == [2, 3]


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO orders (note) SELECT get_lock('go', 60)",
        "/* SELECT */ INSERT INTO orders (note) WITH one AS (SELECT 1) SELECT get_lock('go', 60) FROM one",
        "/*! INSERT */ INTO orders (note) SELECT get_lock('go', 60)",
    ],
)
def test_a_statement_that_reads_for_long_before_it_writes_is_waited_for(
    opened: Any, orders: OrdersInMariaDb, statement: str
) -> None:
    """InnoDB lists it as no transaction yet, and its rows get the time at which it began."""
    is_waited_for(opened, orders, statement)


@pytest.mark.parametrize(
    "reads",
    [
        "SELECT get_lock('go', 60) INTO found",
        "SET found = get_lock('go', 60)",
        "WITH one AS (SELECT get_lock('go', 60) AS got) SELECT got INTO found FROM one",
        "CREATE TEMPORARY TABLE IF NOT EXISTS kept AS SELECT get_lock('go', 60) AS got",
        "FOR got IN (SELECT get_lock('go', 60) AS one) DO SET found = got.one; END FOR",
    ],
)
def test_so_is_one_whose_trigger_reads_for_long(opened: Any, orders: OrdersInMariaDb, reads: str) -> None:
    """The server shows what the trigger does, and not the statement that will have written a row."""
    orders.execute(
        "CREATE TRIGGER slow BEFORE INSERT ON orders FOR EACH ROW BEGIN DECLARE found INT; "
        f"IF NEW.note = 'slow' THEN {reads}; END IF; END"
    )
    is_waited_for(opened, orders, "INSERT INTO orders (note) VALUES ('slow')")


def test_so_is_one_that_shows_what_a_function_that_writes_lets_through(opened: Any, orders: OrdersInMariaDb) -> None:
    orders.execute(
        "CREATE FUNCTION writes() RETURNS INT BEGIN INSERT IGNORE INTO orders (id) VALUES (3); RETURN 1; END"
    )
    is_waited_for(opened, orders, "SHOW TABLES WHERE get_lock('go', 60) AND writes()")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT get_lock('go', 60)",
        "/* INSERT */ (SELECT get_lock('go', 60))",
        "-- INSERT\nSELECT get_lock('go', 60)",
        "WITH one AS (SELECT 1) SELECT get_lock('go', 60) FROM one",
    ],
)
def test_a_statement_that_only_reads_is_not_waited_for(opened: Any, orders: OrdersInMariaDb, statement: str) -> None:
    source = opened(timestamp="updated_at")
    with waiting(orders, statement):
        orders.execute(INSERT)
        assert orders.ids(source, None, source.latest_offset(None)) == [1]


def test_a_transaction_that_began_in_the_millisecond_of_a_plan_is_waited_for(
    opened: Any, orders: OrdersInMariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = opened()
    with orders.connect() as slow:
        slow.execute(INSERT)
        orders.execute(INSERT)
        slow.execute(
            "SELECT unix_timestamp(trx_started) FROM information_schema.innodb_trx "
            "WHERE trx_mysql_thread_id = connection_id()"
        )
        ((began,),) = slow.fetchall()
        with monkeypatch.context() as patched:
            patched.setattr(table, "now", lambda _: int(1000 * began))
            first = source.latest_offset(None)
        orders.execute(INSERT)
        second = source.latest_offset(first)
        assert [gap.first for gap in Place.of(second).gaps] == [1]
    assert orders.ids(source, second, source.latest_offset(second)) == [1]
