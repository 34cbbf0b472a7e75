"""Rows of a real PostgreSQL by a column of timestamps, while others write: each version is read once."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_microbatch.exceptions import DefinitionError, SourceChangedError, SourceError
from airflow_provider_microbatch.sources import ReadLimit
from airflow_provider_microbatch.sources.jdbc import by_time
from airflow_provider_microbatch.sources.jdbc.by_time import OpenTimedTable
from airflow_provider_microbatch.sources.jdbc.cluster import Cluster
from airflow_provider_microbatch.sources.jdbc.moment import Had, Made, Moment, Running
from airflow_provider_microbatch.sources.jdbc.transactions import unseen
from tests.sources.beside_writers import read_beside
from tests.sources.jdbc_world import INSERT, check_lag_waits_for_nobody, ids, opener, timed_orders
from tests.support.orders_table import OrdersTable

pytestmark = pytest.mark.slow  # a database is started


@pytest.fixture
def orders() -> Iterator[OrdersTable]:
    with timed_orders() as table:
        yield table


@pytest.fixture
def opened(tmp_path: Path, orders: OrdersTable) -> Callable[..., Any]:
    return opener(tmp_path, orders, timestamp="updated_at")


def test_a_row_that_is_committed_behind_a_later_one_is_read_by_the_next_batch_and_once(
    opened: Any, orders: OrdersTable
) -> None:
    source = opened()
    with orders.connect() as slow:
        slow.execute(INSERT)
        orders.execute(INSERT)
        first = source.latest_offset(None)
        assert ids(orders, source, None, first) == [2]
        assert not source.has_new(first)
        assert source.latest_offset(first) == first
    assert source.has_new(first)
    assert source.lag(first).rows == 1
    orders.execute(INSERT)
    second = source.latest_offset(first)
    assert ids(orders, source, first, second) == [1, 3]
    assert ids(orders, source, None, first) == [2], "as it was planned, although the late one is there now"
    assert not source.has_new(second)
    assert [source.describe(*range).rows for range in ((None, first), (first, second))] == [1, 2]
    assert source.lag(second).rows == 0


def test_rows_of_subtransactions_have_ids_that_no_snapshot_names_and_are_read_once_all_the_same(
    opened: Any, orders: OrdersTable
) -> None:
    source = opened()
    with orders.connect() as slow:
        slow.execute(INSERT)
        with slow.transaction():
            slow.execute(INSERT)
        slow.execute("SAVEPOINT open")
        slow.execute(INSERT)
        orders.execute(INSERT)
        first = source.latest_offset(None)
        assert ids(orders, source, None, first) == [4]
    second = source.latest_offset(first)
    assert ids(orders, source, first, second) == [1, 2, 3]
    assert not source.has_new(second)
    assert ids(orders, source, None, first) == [4]


def test_a_transaction_that_ends_while_a_batch_is_planned_is_read_once(
    opened: Any, orders: OrdersTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at what runs and the snapshot: it ran, and its rows are there."""
    source, slow = opened(), orders.connect()
    slow.execute(INSERT)
    execute = psycopg.Connection.execute

    def then_commits(self: Any, statement: Any, *rest: Any, **options: Any) -> Any:
        if "SET LOCAL timezone" in str(statement):
            slow.commit()
        return execute(self, statement, *rest, **options)

    with monkeypatch.context() as patched:
        patched.setattr(psycopg.Connection, "execute", then_commits)
        first = source.latest_offset(None)
    slow.close()
    assert ids(orders, source, None, first) == [1]
    assert not source.has_new(first)


def test_a_transaction_is_waited_for_beyond_the_window_once_it_was_seen_to_run(
    opened: Any, orders: OrdersTable
) -> None:
    source, hours = opened(late_seconds=60), "clock_timestamp() - interval '{} hours'"
    orders.execute(f"INSERT INTO orders (updated_at) VALUES ({hours.format(3)})")
    with orders.connect() as slow:
        position = source.latest_offset(None)
        slow.execute(f"INSERT INTO orders (updated_at) VALUES ({hours.format(2.5)})")
        for age in (2, 1, 0):
            orders.execute(f"INSERT INTO orders (updated_at) VALUES ({hours.format(age)})")
            position = source.latest_offset(position)
    end = source.latest_offset(position)
    assert ids(orders, source, position, end) == [2]
    # Whose transaction nobody has seen, and which is behind the window, is lost: the page says so.
    orders.execute(f"INSERT INTO orders (updated_at) VALUES ({hours.format(2.5)})")
    assert not source.has_new(end)


def test_what_ran_before_the_first_batch_is_waited_for_however_old_its_rows_are(
    opened: Any, orders: OrdersTable
) -> None:
    source, insert = opened(late_seconds=60), "INSERT INTO orders (updated_at) VALUES ({})"
    with orders.connect() as slow:
        slow.execute(insert.format("'0044-03-15 12:00:00+00 BC'"))
        slow.execute(insert.format("clock_timestamp() - interval '3 hours'"))
        orders.execute(insert.format("clock_timestamp() - interval '1 hour'"))
        first = source.latest_offset(None)
        orders.execute(INSERT)
        second = source.latest_offset(first)
    assert (ids(orders, source, None, first), ids(orders, source, first, second)) == ([3], [4])
    assert source.has_new(second)
    third = source.latest_offset(second)
    assert ids(orders, source, second, third) == [1, 2]
    assert not source.has_new(third)


def test_the_newest_transaction_of_all_is_waited_for_however_old_its_rows_are(opened: Any, orders: OrdersTable) -> None:
    """Of those that had ended none was as new, so that no snapshot named it."""
    source, hours = opened(late_seconds=60), "clock_timestamp() - interval '{} hours'"
    orders.execute(f"INSERT INTO orders (updated_at) VALUES ({hours.format(1)})")
    with orders.connect() as loader:
        loader.execute(f"INSERT INTO orders (updated_at) VALUES ({hours.format(3)})")
        first = source.latest_offset(None)
        loader.execute(f"INSERT INTO orders (updated_at) VALUES ({hours.format(2)})")
    assert source.has_new(first)
    second = source.latest_offset(first)
    assert (ids(orders, source, None, first), ids(orders, source, first, second)) == ([1], [2, 3])


def test_a_frozen_row_with_the_number_of_a_transaction_that_runs_does_not_end_it(orders: OrdersTable) -> None:
    """Ids come again after four billion: the row is one of an earlier epoch."""
    with orders.connect() as slow, orders.connect() as session:
        (ran,) = slow.execute("SELECT pg_current_xact_id()::text::bigint").fetchone() or (0,)
        (below,) = session.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchone() or (0,)
        rows = f"FROM (SELECT '{ran}'::xid AS xmin) AS frozen WHERE true"
        assert unseen(session, (below, [ran]), below, rows=rows) == [ran]
        slow.commit()
        assert unseen(session, (below, [ran]), below, rows=rows) == []


def test_an_updated_row_comes_again_and_is_missed_where_it_was(
    opened: Any, orders: OrdersTable, caplog: pytest.LogCaptureFixture
) -> None:
    source, skips = opened(), opened(on_missing="skip")
    orders.execute("INSERT INTO orders (note) SELECT 'x' FROM generate_series(1, 5)")
    first = source.latest_offset(None)
    told = dict(source.read(None, first).arguments["told"])
    source.verify(None, first, told)
    orders.execute("UPDATE orders SET note = 'y', updated_at = clock_timestamp() WHERE id IN (2, 3)")
    orders.execute("DELETE FROM orders WHERE id = 4")
    # One that leaves the timestamp alone is found within the window too: it is another version.
    orders.execute("UPDATE orders SET note = 'z' WHERE id = 5")
    second = source.latest_offset(first)
    assert ids(orders, source, first, second, "note") == ["y", "y", "z"]
    with pytest.raises(SourceChangedError, match=r"'orders': 4 of 5 rows .* changed"):
        source.verify(None, first, told)
    skips.verify(None, first, told)
    assert "Some went while they were read" in caplog.text
    assert "4 of 5" in skips.left_out(None, first, told=told)
    with pytest.raises(SourceChangedError, match=r"4 of 5 rows .*on_missing"):
        source.read(None, first)
    assert "4 of 5" in source.not_replayable(None, first)
    assert ids(orders, skips, None, first) == [1]
    assert "4 of 5" in skips.left_out(None, first)
    skips.verify(None, first, dict(skips.read(None, first).arguments["told"]))
    assert source.known_as(None, first) != source.known_as(first, second)


def test_a_limit_cuts_among_equal_timestamps_by_the_key_and_takes_them_whole_without_one(
    opened: Any, orders: OrdersTable
) -> None:
    moment = "2026-11-01 10:00:00.00000{}+00"
    for last, rows in ((1, 3), (2, 4), (3, 1)):
        orders.execute(
            f"INSERT INTO orders (updated_at) SELECT '{moment.format(last)}' FROM generate_series(1, {rows})"
        )

    def batches(source: OpenTimedTable) -> list[list[int]]:
        position, found = None, []
        while (end := source.latest_offset(position)) != position:
            found.append(ids(orders, source, position, end))
            assert len(found[-1]) == source.describe(position, end).rows
            position = end
        assert not source.has_new(position)
        return found

    assert batches(opened(max_rows=2)) == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert batches(opened(max_rows=2, column=None)) == [[1, 2, 3], [4, 5, 6, 7], [8]]
    parted = opened(partitions=3)
    end = parted.latest_offset(None)
    predicates = parted.read(None, end).arguments["predicates"]
    assert len(predicates) in (2, 3)
    assert ids(orders, parted, None, end) == list(range(1, 9))
    assert ids(orders, parted, None, parted.latest_offset(None, ReadLimit(rows=1))) == [1]


def test_late_rows_come_beside_the_limit(opened: Any, orders: OrdersTable) -> None:
    source = opened(max_rows=2)
    with orders.connect() as slow:
        slow.execute("INSERT INTO orders (note) SELECT 'late' FROM generate_series(1, 3)")
        orders.execute(INSERT)
        first = source.latest_offset(None)
    orders.execute(INSERT)
    second = source.latest_offset(first)
    assert ids(orders, source, first, second) == [1, 2, 3]
    assert ids(orders, source, second, source.latest_offset(second)) == [5]
    assert source.is_after(second, first) is True
    assert source.is_after(first, second) is False


def test_rows_without_a_time_or_of_the_future_wait_for_it_and_hold_nothing_up(opened: Any, orders: OrdersTable) -> None:
    source = opened()
    for time in ("NULL", "'infinity'", "'-infinity'", "clock_timestamp() + interval '1 day'", "clock_timestamp()"):
        orders.execute(f"INSERT INTO orders (updated_at) VALUES ({time})")
    first = source.latest_offset(None)
    assert ids(orders, source, None, first) == [5]
    assert (source.has_new(first), source.lag(first).rows) == (False, 0)
    assert "3 rows of orders have no 'updated_at'" in source.not_read()
    orders.execute("UPDATE orders SET updated_at = clock_timestamp() WHERE id = 1")
    assert ids(orders, source, first, source.latest_offset(first)) == [1]


def test_times_without_a_zone_are_those_of_the_zone_that_is_named(opened: Any, orders: OrdersTable) -> None:
    orders.execute("ALTER TABLE orders DROP updated_at, ADD updated_at timestamp")
    utc, tokyo = opened(), opened(time_zone="Asia/Tokyo")
    write = "INSERT INTO orders (updated_at) VALUES (clock_timestamp() AT TIME ZONE 'Asia/Tokyo')"
    orders.execute(write)
    assert not utc.has_new(None)
    first = tokyo.latest_offset(None)
    assert ids(orders, tokyo, None, first) == [1]
    with orders.connect() as slow:
        slow.execute(write)
        orders.execute(write)
        second = tokyo.latest_offset(first)
    assert ids(orders, tokyo, first, second) == [3]
    assert ids(orders, tokyo, second, tokyo.latest_offset(second)) == [2]
    with pytest.raises(SourceError, match="Nowhere"):
        opened(time_zone="Nowhere").check()


@pytest.mark.parametrize("seed", range(2))
def test_writers_at_once_and_every_version_is_read_once(opened: Any, orders: OrdersTable, seed: int) -> None:
    source, over = opened(max_rows=20, late_seconds=30, on_missing="skip"), threading.Event()
    orders.execute("CREATE TABLE versions (version bigserial)")
    version = "nextval('versions_version_seq')"

    def write(number: int) -> None:
        chance = random.Random(f"{seed} {number}")
        with orders.connect() as session:
            for _ in range(25):
                for _ in range(chance.randint(1, 4)):
                    behind = f"clock_timestamp() - interval '{chance.random() * 20} s'"
                    if chance.random() < 0.5:
                        session.execute(f"INSERT INTO orders (note, updated_at) VALUES ({version}, {behind})")
                        continue
                    with session.transaction(force_rollback=chance.random() < 0.2):
                        session.execute(f"INSERT INTO orders (note, updated_at) VALUES ({version}, {behind})")
                over.wait(chance.random() / 100)
                session.rollback() if chance.random() < 0.2 else session.commit()

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    ranges = read_beside(writers, source, lambda start, end: ids(orders, source, start, end, "note"))
    read = Counter(id for _, _, found in ranges for id in found)
    with orders.connect() as session:
        there = Counter(note for (note,) in session.execute("SELECT note FROM orders"))
    assert read == there
    assert len(ranges) > 1  # however slow the machine is
    for start, end, found in ranges:
        assert ids(orders, source, start, end, "note") == found


def test_a_table_that_was_written_anew_or_made_again_is_named(opened: Any, orders: OrdersTable) -> None:
    source = opened()
    orders.execute("INSERT INTO orders (note) SELECT 'x' FROM generate_series(1, 5)")
    end = source.latest_offset(None)
    with orders.connect(autocommit=True) as session:
        for statement in ("VACUUM FULL orders", "CLUSTER orders USING orders_pkey", "ALTER TABLE orders ADD more text",
                          "VACUUM FREEZE orders"):  # fmt: skip
            session.execute(statement)
            assert not source.has_new(end)
            assert source.latest_offset(end) == end
            assert ids(orders, source, None, end) == [1, 2, 3, 4, 5]
    orders.execute("ALTER TABLE orders ALTER more TYPE int USING 1")
    for look in (source.has_new, source.latest_offset, source.lag):
        with pytest.raises(
            SourceError, match=r"'orders': orders, or a partition of it, was written anew.*set-offset .*--source orders"
        ):
            look(end)
    with pytest.raises(SourceChangedError, match="5 of 5 rows"):
        source.read(None, end)
    orders.execute("CREATE TABLE again (LIKE orders INCLUDING ALL)")
    orders.execute("DROP TABLE orders CASCADE")
    orders.execute("ALTER TABLE again RENAME TO orders")
    for look in (source.has_new, source.latest_offset, source.lag):
        with pytest.raises(SourceError, match=r"'orders': public\.orders was made again"):
            look(end)
    assert source.is_after('{"t": null}', end) is True, "none of its rows were read"
    assert "made again" in source.not_replayable(None, end)
    with pytest.raises(SourceChangedError, match="made again"):
        source.verify(None, end, {"left_out": 0})


def test_a_lag_waits_for_nobody_long(opened: Any, orders: OrdersTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_time, "LAG_SECONDS", 0.1)
    check_lag_waits_for_nobody(opened(), orders)


def test_a_sensor_does_not_fire_for_what_a_plan_refuses(opened: Any, orders: OrdersTable) -> None:
    orders.execute("ALTER TABLE orders ADD amount numeric")
    orders.execute(INSERT)
    for look in (opened().has_new, opened().latest_offset):
        with pytest.raises(SourceError, match="numeric"):
            look(None)


def test_a_column_may_have_any_name(opened: Any, orders: OrdersTable) -> None:
    orders.execute('ALTER TABLE orders RENAME updated_at TO "at %%s 100%%"')
    source = opened(timestamp="at %s 100%")
    with orders.connect() as slow:
        slow.execute(INSERT)
        orders.execute(INSERT)
        first = source.latest_offset(None)
    second = source.latest_offset(first)
    assert (ids(orders, source, None, first), ids(orders, source, first, second)) == ([2], [1])


def test_a_database_that_was_restored_to_an_earlier_time_is_named(opened: Any, orders: OrdersTable) -> None:
    source = opened()
    orders.execute(INSERT)
    place = Moment.of(source.latest_offset(None))
    later = place.text().replace(f'"below": {place.below}', f'"below": {(place.below or 0) + 1000}')
    with pytest.raises(SourceError, match="restored to an earlier time"):
        source.has_new(later)


def test_a_position_by_hand_begins_behind_a_time(opened: Any, orders: OrdersTable) -> None:
    with pytest.raises(SourceError, match="future"):
        opened().check_offset('{"t": "2126-11-02T00:00:00Z"}')  # also where there is no row yet
    for day in (1, 2, 3):
        orders.execute(f"INSERT INTO orders (updated_at) VALUES ('2026-11-0{day} 00:00:00+00')")
    source, by_hand = opened(), '{"t": "2026-11-02T00:00:00Z"}'
    source.check_offset(by_hand)
    end = source.latest_offset(by_hand)
    assert ids(orders, source, by_hand, end) == [3]
    assert (source.is_after(end, by_hand), source.is_after(by_hand, None)) == (True, True)
    for bad in ('{"t": "now()"}', "{\"t\": \"2026-11-02 00:00' OR '1\"}", '{"t": null, "k": 1}', '{"n": 5}',
                '{"t": "2026-11-02 00:00:00+00", "k": "1"}', "[" * 100_000):  # fmt: skip
        with pytest.raises(SourceError, match=r"'orders': .* no place"):
            source.latest_offset(bad)


def test_a_position_by_hand_without_a_zone_is_utc_wherever_spark_is(opened: Any, orders: OrdersTable) -> None:
    for hour in ("01 23", "02 00", "02 01", "02 04", "02 07"):
        orders.execute(f"INSERT INTO orders (updated_at) VALUES ('2026-11-{hour}:00:00+00')")
    source, by_hand = opened(partitions=2), '{"t": "2026-11-02 00:00:00"}'
    end = source.latest_offset(by_hand)
    assert source.describe(by_hand, end).rows == 3
    older = replace(Moment.of(end), since="2026-11-02 00:00:00").text()  # as it was written before
    found = [source.read(by_hand, one).arguments["predicates"] for one in (end, older)]
    with orders.connect() as session:
        for zone in ("America/New_York", "Asia/Tokyo", "UTC"):
            session.execute(f"SET timezone = '{zone}'")
            for predicates in found:
                rows = [session.execute(f"SELECT id FROM orders WHERE {one}").fetchall() for one in predicates]
                assert sorted(id for part in rows for (id,) in part) == [3, 4, 5]


def test_what_cannot_be_read_by_time_is_said(opened: Any, orders: OrdersTable) -> None:
    with pytest.raises(SourceError, match=r"\"note\".* is not of timestamps"):
        opened(timestamp="note").check()
    with pytest.raises(SourceError, match=r"\"note\".* is not of whole numbers"):
        opened(column="note").check()
    orders.execute("ALTER TABLE orders ADD rank int")
    with pytest.raises(SourceError, match="may be null"):
        opened(column="rank").check()
    orders.execute("CREATE VIEW seen AS SELECT * FROM orders")
    with pytest.raises(SourceError, match="no table"):
        opened("seen").check()
    opened(column=None).check()
    for wrong in ({"timestamp": ""}, {"timestamp": 1}, {"time_zone": ""}, {"first": 3}):
        with pytest.raises(DefinitionError, match="JdbcSource"):
            opened(**wrong)
    with pytest.raises(DefinitionError, match="column"):
        opened(timestamp=None, column=None)


TIMES = st.datetimes().map(lambda moment: moment.isoformat(sep=" ") + "+00")


@given(
    TIMES,
    st.none() | st.integers(),
    st.lists(
        st.builds(
            lambda at, more, time: Running(first=at, last=at + more, since=time), st.integers(), st.integers(0), TIMES
        )
    ),
    st.none() | TIMES,
    st.integers(0),
)
def test_a_moment_is_read_as_it_was_written(
    time: str, key: int | None, running: list[Running], since: str | None, rows: int
) -> None:
    cluster = Cluster(system=-rows, timeline=2) if rows % 2 else Cluster()
    by, numbers = (None, None) if key is None else ("at, id", (rows, 1))
    made = Made(name="public.orders", oid=17, file=3, cluster=cluster, by=by, numbers=numbers)
    place = Moment(time=time, key=key, below=9, running=tuple(running), since=since, rows=rows, digest="7", made=made)
    assert Moment.of(place.text()) == place
    assert Moment.of(replace(place, behind=3).text()) == replace(place, behind=3)
    assert Moment.of(Moment().text()) == Moment()
    spans = ((rows % 10**15, rows % 10**15 + 1), (10**15, 10**15 + 10**9))
    before = Moment(below=8, running=tuple(running), spans=spans[:1], digest="")
    live = Had(after=Moment(time=time, key=key), end=replace(place, made=None)).within(spans)
    had = (live, Had(after=Moment(), end=before))
    interval = Moment(below=9, running=tuple(running), rows=rows, digest="7", made=made, spans=spans, had=had)
    assert Moment.of(interval.text()) == interval
    for wrong in (((2, 1),), ((0, 10**18),), ((0.5, 1),), (("0'", 1),)):
        with pytest.raises(ValueError, match="no place"):
            Moment.of(replace(interval, spans=wrong).text())
    backwards = replace(place, running=(Running(first=2, last=1, since=time),)).text()
    with pytest.raises(ValueError, match="no place"):
        Moment.of(backwards)


def test_partitions_of_a_table_are_read_as_one(opened: Any, orders: OrdersTable) -> None:
    orders.execute("DROP TABLE orders CASCADE")
    orders.execute(
        "CREATE TABLE orders (id bigserial, note text, updated_at timestamptz DEFAULT clock_timestamp()) "
        "PARTITION BY HASH (id)"
    )
    for number in range(2):
        orders.execute(f"CREATE TABLE part{number} PARTITION OF orders FOR VALUES WITH (MODULUS 2, REMAINDER {number})")
    orders.execute("ALTER TABLE orders ALTER id SET NOT NULL")
    source = opened()
    source.check()
    with orders.connect() as slow:
        slow.execute(INSERT)
        orders.execute("INSERT INTO orders (note) SELECT 'x' FROM generate_series(1, 5)")
        first = source.latest_offset(None)
    second = source.latest_offset(first)
    assert (ids(orders, source, None, first), ids(orders, source, first, second)) == ([2, 3, 4, 5, 6], [1])
    orders.execute("ALTER TABLE orders ALTER note TYPE int USING 1")
    with pytest.raises(SourceError, match="written anew"):
        source.has_new(second)
