"""Rows of a table of a real PostgreSQL, while others write: each is read once, whenever its transaction commits."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_microbatch.exceptions import DefinitionError, SourceChangedError, SourceError
from airflow_provider_microbatch.sources import ReadLimit, SourceContext
from airflow_provider_microbatch.sources.jdbc import JdbcSource, numbered
from airflow_provider_microbatch.sources.jdbc.cluster import Cluster
from airflow_provider_microbatch.sources.jdbc.offset import Gap, Place, Table, divided
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.sources.beside_writers import read_beside
from tests.sources.jdbc_world import INSERT, check_lag_waits_for_nobody, ids, opener
from tests.support.orders_table import OrdersTable, orders_table

pytestmark = pytest.mark.slow  # a database is started


@pytest.fixture
def orders() -> Iterator[OrdersTable]:
    with orders_table() as table:
        yield table


@pytest.fixture
def opened(tmp_path: Path, orders: OrdersTable) -> Callable[..., Any]:
    return opener(tmp_path, orders)


def test_a_row_that_is_committed_behind_a_later_one_is_read_by_the_next_batch_and_once(
    opened: Any, orders: OrdersTable
) -> None:
    source = opened()
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
    # As it was planned, although the row of the gap is there now.
    assert ids(orders, source, None, first) == [2]
    assert not source.has_new(second)
    assert [source.describe(*range).rows for range in ((None, first), (first, second))] == [1, 2]
    assert source.lag(first).rows == 2
    assert source.lag(second).rows == 0


def test_a_gap_is_waited_for_as_long_as_a_transaction_of_then_runs(opened: Any, orders: OrdersTable) -> None:
    source = opened(late_seconds=0.001)
    with orders.connect() as slow:
        slow.execute(INSERT)
        position = None
        for _ in range(3):
            orders.execute(INSERT)
            position = source.latest_offset(position)
        assert [(gap.first, gap.last) for gap in Place.of(position).gaps] == [(1, 1)]
    orders.execute(INSERT)
    end = source.latest_offset(position)
    assert ids(orders, source, position, end) == [1, 5]
    assert Place.of(end).gaps == ()


def test_a_gap_is_waited_for_as_long_as_the_newest_transaction_of_all_runs(opened: Any, orders: OrdersTable) -> None:
    """Of those that had ended none was as new, so that no snapshot named it."""
    source = opened(late_seconds=0.001)
    with orders.connect() as older, orders.connect() as slow:
        older.execute("SELECT pg_current_xact_id()")
        slow.execute(INSERT)
        older.execute(INSERT)
        older.commit()
        first = source.latest_offset(None)
        orders.execute(INSERT)
        second = source.latest_offset(first)
    assert source.has_new(second)
    third = source.latest_offset(second)
    batches = [ids(orders, source, *range) for range in ((None, first), (first, second), (second, third))]
    assert batches == [[2], [3], [1]]


def test_a_row_ahead_of_the_sequence_gives_up_no_number_that_the_sequence_gives_later(
    opened: Any, orders: OrdersTable
) -> None:
    source = opened(late_seconds=0.001)
    orders.execute("INSERT INTO orders (id) VALUES (nextval('orders_id_seq')), (1000)")
    ends = [None, source.latest_offset(None)]
    orders.execute("INSERT INTO orders (id) VALUES (1001)")
    ends.append(source.latest_offset(ends[-1]))
    with orders.connect() as slow:
        slow.execute(INSERT)  # which nobody had taken when it was missed
        for _ in range(2):
            orders.execute(INSERT)
            ends.append(source.latest_offset(ends[-1]))
    assert source.has_new(ends[-1])
    ends.append(source.latest_offset(ends[-1]))
    batches = [ids(orders, source, *range) for range in pairwise(ends)]
    assert batches == [[1, 1000], [1001], [3], [4], [2]]
    with orders.connect() as session:
        session.execute(INSERT)
        session.rollback()
    for _ in range(2):
        orders.execute(INSERT)
        ends.append(source.latest_offset(ends[-1]))
    assert [(gap.first, gap.last) for gap in Place.of(ends[-1]).gaps] == [(8, 999)]
    orders.execute("INSERT INTO orders VALUES (5, 'by hand')")
    assert not source.has_new(ends[-1]), "of what the sequence gave a number is waited for as ever"


@pytest.mark.parametrize("following", [1002, 1], ids=["is told", "is as it was made"])
def test_nor_does_it_where_the_sequence_is_set_and_has_given_none(
    opened: Any, orders: OrdersTable, following: int
) -> None:
    source = opened(late_seconds=0.001)
    orders.execute("INSERT INTO orders (id) VALUES (nextval('orders_id_seq')), (1000)")
    ends = [None, source.latest_offset(None)]
    orders.execute("SELECT setval('orders_id_seq', %s, false)", following)
    for number in (1005, 1006):  # of which the first is ahead of the sequence, too
        orders.execute("INSERT INTO orders (id) VALUES (%s)", number)
        ends.append(source.latest_offset(ends[-1]))
    if following == 1:
        orders.execute("SELECT setval('orders_id_seq', 1)")  # the row that is there
    orders.execute(INSERT)
    ends.append(source.latest_offset(ends[-1]))
    given = 2 if following == 1 else following
    assert [ids(orders, source, *range) for range in pairwise(ends)] == [[1, 1000], [1005], [1006], [given]]


def test_a_number_that_was_rolled_back_is_forgotten_and_its_batch_stays_as_it_was(
    opened: Any, orders: OrdersTable
) -> None:
    with orders.connect() as session:
        session.execute(INSERT)
        session.rollback()
    orders.execute(INSERT)
    patient, source = opened(), opened(late_seconds=0.001)
    first = source.latest_offset(None)
    orders.execute(INSERT)
    second = source.latest_offset(first)
    assert Place.of(second).gaps == ()
    assert len(Place.of(patient.latest_offset(first)).gaps) == 1
    # Whoever writes the number by hand, after all, changes no batch that was planned.
    orders.execute("INSERT INTO orders VALUES (1, 'by hand')")
    assert (ids(orders, source, None, first), ids(orders, source, first, second)) == ([2], [3])


def test_a_limit_leaves_the_rest_to_the_next_batch(opened: Any, orders: OrdersTable) -> None:
    orders.execute("INSERT INTO orders (note) SELECT 'x' FROM generate_series(1, 10)")
    source = opened(max_rows=4, partitions=3)
    position, batches = None, []
    while (end := source.latest_offset(position)) != position:
        batches.append(ids(orders, source, position, end))
        position = end
    assert batches == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
    assert len(source.read(None, source.latest_offset(None)).arguments["predicates"]) == 2
    assert ids(orders, source, None, source.latest_offset(None, ReadLimit(rows=1))) == [1]


def test_writers_at_once_and_every_row_is_read_once(opened: Any, orders: OrdersTable) -> None:
    source, over = opened(max_rows=20, late_seconds=0.001), threading.Event()

    def write(seed: int) -> None:
        chance = random.Random(seed)
        with orders.connect() as session:
            for _ in range(25):
                for _ in range(chance.randint(1, 4)):
                    session.execute(INSERT)
                over.wait(chance.random() / 100)  # its numbers are taken, and nobody sees them
                session.rollback() if chance.random() < 0.2 else session.commit()

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    ranges = read_beside(writers, source, lambda start, end: ids(orders, source, start, end))
    read = Counter(id for _, _, found in ranges for id in found)
    with orders.connect() as session:
        there = Counter(id for (id,) in session.execute("SELECT id FROM orders"))
    assert read == there
    assert len(ranges) > 1  # however slow the machine is
    for start, end, found in ranges:
        assert ids(orders, source, start, end) == found


def test_a_lag_waits_for_nobody_long(opened: Any, orders: OrdersTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbered, "LAG_SECONDS", 0.1)
    check_lag_waits_for_nobody(opened(), orders)


def test_a_position_of_another_cluster_is_named_with_the_ways_on(opened: Any, orders: OrdersTable) -> None:
    orders.execute(INSERT)
    source = opened()
    place = Place.of(source.latest_offset(None))
    assert place.table is not None
    now = place.table.cluster
    older = replace(place, table=replace(place.table, cluster=Cluster())).text()
    assert (source.has_new(older), source.latest_offset(older)) == (False, older)
    other = replace(place, table=replace(place.table, cluster=replace(now, system=7))).text()
    for look in (source.has_new, source.latest_offset, source.lag):
        with pytest.raises(SourceError, match=rf"identifier {now.system}, and 7 then.* set-offset .*--offset"):
            look(other)
    assert "another database cluster" in source.not_replayable(None, other)


@pytest.mark.parametrize("bad", ['{"n": 9, "gaps": [[5, 4, 0, 3]]}', "[" * 100_000])
def test_what_is_no_place_is_said(opened: Any, orders: OrdersTable, bad: str) -> None:
    with pytest.raises(SourceError, match=r"'orders': .* no place"):
        opened().latest_offset(bad)


def test_a_sensor_does_not_fire_for_what_a_plan_refuses(opened: Any, orders: OrdersTable) -> None:
    orders.execute("ALTER TABLE orders ADD amount numeric")
    orders.execute(INSERT)
    for look in (opened().has_new, opened().latest_offset):
        with pytest.raises(SourceError, match="numeric"):
            look(None)


def test_what_cannot_be_asked_is_said(opened: Any, orders: OrdersTable) -> None:
    with pytest.raises(SourceError, match=r"source 'orders': column \"note\".* is not of whole numbers"):
        opened(column="note").check()
    with pytest.raises(SourceError, match=r"source 'orders': PostgreSQL says: .*missing"):
        opened(column="missing").check()
    orders.execute(INSERT)
    with pytest.raises(SourceError, match="behind the last row"):
        opened().check_offset(Place(number=7).text())


@pytest.mark.parametrize("gaps", ["[2, 4]", "[[2, 4]]", "7", "[[2, 4, 0, 0, 0]]"])
def test_gaps_by_hand_of_another_form_are_told_which_form_they_have(
    opened: Any, orders: OrdersTable, gaps: str
) -> None:
    orders.execute("INSERT INTO orders (id) VALUES (1), (7)")
    with pytest.raises(SourceError, match=r"no place in a table: each of 'gaps' is \[first, last, milliseconds"):
        opened().check_offset(f'{{"n": 7, "gaps": {gaps}}}')


@pytest.mark.parametrize("gaps", ["[[2, 3, 0, 0], [3, 4, 0, 0]]", "[[4, 4, 0, 0], [2, 2, 0, 0]]", "[[6, 8, 0, 0]]"])
def test_gaps_by_hand_that_overlap_or_lie_behind_the_number_are_refused(
    opened: Any, orders: OrdersTable, gaps: str
) -> None:
    orders.execute("INSERT INTO orders (id) VALUES (1), (7), (9)")
    with pytest.raises(SourceError, match=r"no place in a table: its gaps are not in order.*up to n"):
        opened().check_offset(f'{{"n": 7, "gaps": {gaps}}}')


def test_rows_of_numbers_that_a_position_by_hand_still_waits_for_do_not_count_as_passed_over(
    opened: Any, orders: OrdersTable
) -> None:
    source = opened()
    orders.execute("INSERT INTO orders (id) VALUES (1), (2), (5)")
    end = source.latest_offset(None) or ""
    orders.execute("INSERT INTO orders (id) VALUES (3), (4), (6), (7)")
    place = Place.of(end)
    assert [(gap.first, gap.last) for gap in place.gaps] == [(3, 4)]
    part = replace(place.gaps[0], first=4)
    for gaps, passed in ((place.gaps, 1), ((part,), 2), ((), 3)):
        by_hand = Place(number=6, gaps=gaps, by_hand=True).text()
        assert source.between_in_words(end, by_hand) == {"rows": passed}


def test_a_planned_row_that_is_gone_is_an_error_and_none_that_is_left_out_in_silence(
    opened: Any, orders: OrdersTable, caplog: pytest.LogCaptureFixture
) -> None:
    orders.execute("INSERT INTO orders (note) SELECT 'x' FROM generate_series(1, 5)")
    source, skips = opened(), opened(on_missing="skip")
    end = source.latest_offset(None)
    told = dict(source.read(None, end).arguments["told"])
    source.verify(None, end, told)
    assert source.not_replayable(None, end) is None
    orders.execute("DELETE FROM orders WHERE id IN (2, 3)")
    # Also in the middle of a read: what Spark has read is not what was planned.
    with pytest.raises(SourceChangedError, match="'orders': 2 of 5 rows"):
        source.verify(None, end, told)
    skips.verify(None, end, told)  # where it may go on without them, a batch of rows that go would never be made
    assert "Some went while they were read" in caplog.text
    with pytest.raises(SourceChangedError, match=r"2 of 5 rows .*on_missing"):
        source.read(None, end)
    assert "2 of 5 rows" in source.not_replayable(None, end)
    assert ids(orders, skips, None, end) == [1, 4, 5]
    without = dict(skips.read(None, end).arguments["told"])
    skips.verify(None, end, without)
    assert skips.not_replayable(None, end) is None
    assert "2 of 5 rows" in skips.left_out(None, end)
    assert "2 of 5 rows" in skips.left_out(None, end, told=told)
    assert skips.left_out(None, end, told=without) is None
    assert source.left_out(None, end) is None


def test_a_table_that_counts_from_the_beginning_again_is_named_and_nothing_is_read_of_it(
    opened: Any, orders: OrdersTable
) -> None:
    with orders.connect() as session:
        session.execute(INSERT)
        session.rollback()
    orders.execute("INSERT INTO orders (note) SELECT 'x' FROM generate_series(1, 5)")
    source = opened()
    end = source.latest_offset(None)
    # Emptied, it goes on where it was; and the newest rows may be gone again.
    orders.execute("TRUNCATE orders")
    assert not source.has_new(end)
    orders.execute("INSERT INTO orders (note) SELECT 'x' FROM generate_series(1, 2)")
    second = source.latest_offset(end)
    orders.execute("DELETE FROM orders WHERE id = 8")
    assert (source.has_new(second), source.latest_offset(second)) == (False, second)
    # An older version did not write which table it was; then the numbers alone tell.
    older = replace(Place.of(second), table=None).text()
    orders.execute("TRUNCATE orders RESTART IDENTITY")
    orders.execute(INSERT)
    # The number of its first row was waited for, even.
    for look in (source.has_new, source.latest_offset, source.lag):
        with pytest.raises(SourceError, match=r"'orders': .* begins again.* 1, and was read up to 8"):
            look(older)
    assert ids(orders, source, None, source.latest_offset(None)) == [1]


AGAIN = {
    "truncated": ["TRUNCATE orders RESTART IDENTITY"],
    "sequence": ["DELETE FROM orders", "ALTER SEQUENCE orders_id_seq RESTART"],
    "made": ["DROP TABLE orders", "CREATE TABLE orders (id bigserial PRIMARY KEY, note text)"],
    "exchanged": ["ALTER TABLE orders RENAME TO old", "CREATE TABLE orders (id bigint PRIMARY KEY, note text)",
                  "CREATE SEQUENCE n", "ALTER TABLE orders ALTER id SET DEFAULT nextval('n')"],
}  # fmt: skip


@pytest.mark.parametrize("how", AGAIN)
def test_a_table_that_was_made_again_and_filled_past_the_position_is_known(
    opened: Any, orders: OrdersTable, how: str
) -> None:
    fill = "INSERT INTO orders (note) SELECT 'x' FROM generate_series(1, 9)"
    orders.execute("INSERT INTO orders (note) SELECT 'x' FROM generate_series(1, 5)")
    source = opened()
    end = source.latest_offset(None)
    told = dict(source.read(None, end).arguments["told"])
    for statement in AGAIN[how]:
        orders.execute(statement)
    orders.execute(fill)
    again = (
        r"source 'orders': public\.orders was made again.* set-offset .*--source orders --offset '.*n.*' --allow-skip"
    )
    for look in (source.has_new, source.latest_offset, source.lag):
        with pytest.raises(SourceError, match=again):
            look(end)
    # Made again between plan and read, between read and publish, and before a replay.
    with pytest.raises(SourceChangedError, match=again):
        source.read(None, end)
    with pytest.raises(SourceChangedError, match=again):
        source.verify(None, end, told)
    assert "was made again" in source.not_replayable(None, end)
    # By hand: from the beginning, or on where it was; both lie behind what is not there any more.
    for by_hand, rest in (('{"n": 0}', list(range(1, 10))), ('{"n": 5, "gaps": []}', [6, 7, 8, 9])):
        source.check_offset(by_hand)
        assert (source.is_after(by_hand, end), source.is_after(end, by_hand)) == (True, False)
        following = source.latest_offset(by_hand)
        assert ids(orders, source, by_hand, following) == rest
        assert not source.has_new(following)
    same_numbers = source.latest_offset('{"n": 0}', ReadLimit(rows=5))
    assert source.known_as(None, same_numbers) != source.known_as(None, end)


def test_what_leaves_a_table_the_same_is_no_other_table(opened: Any, orders: OrdersTable) -> None:
    orders.execute("INSERT INTO orders (note) SELECT 'x' FROM generate_series(1, 5)")
    source = opened()
    end = source.latest_offset(None)
    with orders.connect(autocommit=True) as session:
        for statement in (
            "VACUUM FULL orders",
            "CLUSTER orders USING orders_pkey",
            "REINDEX TABLE orders",
            "SELECT setval('orders_id_seq', 20)",
            "ALTER TABLE orders ADD COLUMN more text",
        ):
            session.execute(statement)
            assert not source.has_new(end)
            source.read(None, end)
    assert source.is_after('{"n": 3}', end) is False


def test_a_position_of_another_table_names_both(opened: Any, orders: OrdersTable) -> None:
    orders.execute("INSERT INTO orders (note) SELECT 'x' FROM generate_series(1, 5)")
    end = opened().latest_offset(None)
    orders.execute("CREATE TABLE more (id bigserial PRIMARY KEY)")
    orders.execute("INSERT INTO more SELECT FROM generate_series(1, 9)")
    with pytest.raises(SourceError, match=r"is one of table public\.orders, and public\.more is read now"):
        opened(table="more").latest_offset(end)


def test_numbers_that_spark_would_change_are_refused_by_name_unless_they_are_read_as_texts(
    opened: Any, orders: OrdersTable
) -> None:
    orders.execute("CREATE DOMAIN money_ AS numeric")
    orders.execute(
        "ALTER TABLE orders ADD a numeric, ADD b numeric(39, 2), ADD c numeric(38, 38), ADD d money_, ADD e numeric[],"
        " ADD f numeric(5, 0)"
    )
    orders.execute(INSERT)
    for ask in (opened().check, lambda: opened().latest_offset(None)):
        with pytest.raises(SourceError, match=r"'orders': .* null: a, b, d, e\. .*texts=\['a', 'b', 'd', 'e'\]"):
            ask()
    opened(texts=["a", "b", "d", "e"]).check()


def test_what_the_connection_says_of_tls_is_heeded_by_the_plan_and_by_spark(
    tmp_path: Path, orders: OrdersTable
) -> None:
    tls = {"sslmode": "verify-full", "sslrootcert": "/etc/ca.pem", "cursor": "realdictcursor", "sslpassword": "s3cret"}
    strict = replace(orders.connection, extra=tls)
    store = PosixStore(tmp_path / "checkpoint")
    context = SourceContext(name="orders", log=store, state=store, clock_ms=lambda: 0, connect=lambda _: strict)
    source = JdbcSource("orders", orders.conn_id).open(context)
    with pytest.raises(SourceError, match=r"SSL|certificate"):
        source.has_new(None)
    arguments = source.read(None, None).arguments
    tls = {"sslmode": "verify-full", "sslrootcert": "/etc/ca.pem"}
    assert tls.items() <= arguments["options"].items()
    assert "s3cret" not in repr(arguments)


def test_names_are_names_and_no_sql(tmp_path: Path, orders: OrdersTable) -> None:
    orders.execute('CREATE TABLE "a ""b" ("x; DROP TABLE orders" int)')
    orders.execute('INSERT INTO "a ""b" VALUES (1)')
    store = PosixStore(tmp_path / "checkpoint")
    context = SourceContext(name="odd", log=store, state=store, clock_ms=lambda: 0)
    source = JdbcSource('public.a "b', orders.conn_id, column="x; DROP TABLE orders").open(context)
    assert source.has_new(None)
    orders.execute("SELECT * FROM orders")


@pytest.mark.parametrize(
    "options",
    [{"table": "a.b.c"}, {"table": ""}, {"partitions": 0}, {"max_rows": 0}, {"late_seconds": 0}, {"driver": "x"},
     {"first": "1"}],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match="JdbcSource"):
        JdbcSource(**{"table": "orders", "conn_id": "orders_db", **options})


@given(
    st.integers(0, 30),
    st.sets(st.integers(1, 60), max_size=40),
    st.sets(st.integers(1, 30), max_size=10),
    st.integers(1, 5),
)
def test_the_numbers_of_a_batch_are_those_that_were_there(
    start: int, there: set[int], late: set[int], parts: int
) -> None:
    behind = {number for number in there if number > start}
    if not behind:
        return
    end = max(behind)
    missing = [number for number in range(start + 1, end + 1) if number not in behind]
    gaps = tuple(Gap(first=number, last=number, seen_ms=0, xmax=3) for number in missing)
    late = {number for number in late if number <= start}
    place = Place(number=end, gaps=gaps, late=tuple((number, number) for number in sorted(late)))
    assert Place.of(place.text()) == place
    known = replace(place, table=Table(name="public.orders", oid=17, sequence=None if start else 18))
    assert Place.of(known.text()) == known
    divided_spans = divided(place.spans(start), parts)
    found = [n for part in divided_spans for first, last in part for n in range(first, last + 1)]
    assert sorted(found) == sorted(behind | late)
    assert len(divided_spans) <= parts
