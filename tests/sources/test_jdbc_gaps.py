"""Rows of a table whose numbers have more gaps than an offset lists: transactions tell which of them were read."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_microbatch.checkpoint.log import spans_of
from airflow_provider_microbatch.exceptions import SourceChangedError, SourceError
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.sources.jdbc import numbered
from airflow_provider_microbatch.sources.jdbc import open as opened_module
from airflow_provider_microbatch.sources.jdbc import sparse as sparse_module
from airflow_provider_microbatch.sources.jdbc.offset import NOT_TAKEN, Gap, Place
from airflow_provider_microbatch.sources.jdbc.sparse import Mark, Sparse, joined
from tests.sources.jdbc_world import INSERT, ids, in_two_partitions, opener, without, write_anew
from tests.support.orders_table import OrdersTable, orders_table

pytestmark = pytest.mark.slow  # a database is started


@pytest.fixture
def orders() -> Iterator[OrdersTable]:
    with orders_table() as table:
        yield table


@pytest.fixture
def opened(tmp_path: Path, orders: OrdersTable) -> Callable[..., Any]:
    return opener(tmp_path, orders)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_of_more_gaps_than_can_be_listed_every_row_is_read_once_in_bounded_space(
    opened: Any, orders: OrdersTable, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(opened_module, "MOST_GAPS", 6)
    monkeypatch.setattr(sparse_module, "MOST_MARKS", 4)
    source, chance = opened(max_rows=10, partitions=2), random.Random(seed)
    orders.execute("ALTER SEQUENCE orders_id_seq INCREMENT BY 10")
    slow: list[Any] = []
    position, read, ranges, longest = None, Counter[int](), [], 0
    for step in range(60):
        is_over = step > 45
        for _ in range(0 if is_over else chance.randint(1, 3)):
            session = orders.connect()
            for _ in range(chance.randint(1, 3)):
                with session.transaction() if chance.random() < 0.5 else nullcontext():
                    session.execute(INSERT)
            slow.append(session)
        chance.shuffle(slow)
        while len(slow) > (0 if is_over else 4):
            session = slow.pop()
            session.rollback() if chance.random() < 0.2 else session.commit()
            session.close()
        end = source.latest_offset(position)
        assert source.has_new(position) is (end != position)
        if end == position:
            continue
        found = ids(orders, source, position, end)
        assert len(found) == source.describe(position, end).rows
        read.update(found)
        ranges.append((position, end, found))
        position, longest = end, max(longest, len(end))
    with orders.connect() as session:
        there = Counter(id for (id,) in session.execute("SELECT id FROM orders"))
    assert read == there
    assert source.lag(position).rows == 0
    assert Place.of(position).sparse is not None
    assert longest < 1000
    for start, end, found in ranges:
        assert ids(orders, source, start, end) == found


def test_beyond_the_gaps_that_are_listed_a_number_is_waited_for_as_long(
    opened: Any, orders: OrdersTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_module, "MOST_GAPS", 3)
    source = opened(late_seconds=0.001)
    insert = "INSERT INTO orders (id) SELECT 10 * n FROM generate_series({}, {}) AS n"
    with orders.connect() as slow:
        slow.execute("INSERT INTO orders (id) VALUES (15)")
        orders.execute(insert.format(1, 5))
        position = source.latest_offset(None)
        assert Place.of(position).sparse is not None
        for step in (6, 7, 8):
            orders.execute(insert.format(step, step))
            position = source.latest_offset(position)
    end = source.latest_offset(position)
    assert ids(orders, source, position, end) == [15]
    orders.execute(insert.format(9, 9))
    last = source.latest_offset(end)
    # Nobody of then is left: what is written by hand behind all that is waited for is not read.
    orders.execute("INSERT INTO orders (id) VALUES (16)")
    assert not source.has_new(last)
    orders.execute("ALTER TABLE orders ALTER note TYPE int USING 1")
    orders.execute("INSERT INTO orders (id) VALUES (85)")
    with pytest.raises(SourceChangedError, match="1 of 1 rows"):
        source.read(position, end)


def test_beyond_the_gaps_that_are_listed_the_newest_transaction_of_all_is_waited_for(
    opened: Any, orders: OrdersTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_module, "MOST_GAPS", 3)
    source, position = opened(late_seconds=0.001), None
    insert = "INSERT INTO orders (id) SELECT 10 * n FROM generate_series({}, {}) AS n"
    for first, last, late in ((1, 5, 15), (7, 8, 75)):  # by the plan that lists no more, and by one with marks
        with orders.connect() as older, orders.connect() as slow:
            older.execute("SELECT pg_current_xact_id()")
            slow.execute("INSERT INTO orders (id) VALUES (%s)", [late])
            older.execute(insert.format(first, last))
            older.commit()
            position = source.latest_offset(position)
            assert Place.of(position).sparse is not None
            orders.execute(insert.format(last + 1, last + 1))
            position = source.latest_offset(position)
        end = source.latest_offset(position)
        assert ids(orders, source, position, end) == [late]
        position = end


def test_beyond_the_gaps_that_are_listed_a_row_ahead_of_the_sequence_gives_up_no_number(
    opened: Any, orders: OrdersTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_module, "MOST_GAPS", 3)
    source = opened(late_seconds=0.001)
    orders.execute("ALTER SEQUENCE orders_id_seq INCREMENT BY 10")
    orders.execute("INSERT INTO orders (note) SELECT 'x' FROM generate_series(1, 5)")
    orders.execute("INSERT INTO orders (id) VALUES (1000)")
    ends = [None, source.latest_offset(None)]
    orders.execute("INSERT INTO orders (id) VALUES (1001)")
    ends.append(source.latest_offset(ends[-1]))
    with orders.connect() as slow:
        slow.execute(INSERT)  # which nobody had taken when it was missed
        for _ in range(2):
            orders.execute(INSERT)
            ends.append(source.latest_offset(ends[-1]))
    ends.append(source.latest_offset(ends[-1]))
    batches = [ids(orders, source, *range) for range in pairwise(ends)]
    assert batches == [[1, 11, 21, 31, 41, 1000], [1001], [61], [71], [51]]
    orders.execute(INSERT)
    place = Place.of(source.latest_offset(ends[-1]))
    assert place.sparse is not None
    assert place.sparse.waited_from == 72, "of what the sequence gave a number is waited for as ever"


@pytest.mark.parametrize("is_listed", [True, False], ids=["listed", "beyond"])
@pytest.mark.parametrize("how", ["a new file of the sequence", "restored elsewhere"])
def test_the_way_on_that_an_error_tells_gives_up_no_number_that_the_sequence_gives_later(
    opened: Any, orders: OrdersTable, monkeypatch: pytest.MonkeyPatch, how: str, is_listed: bool
) -> None:
    monkeypatch.setattr(opened_module, "MOST_GAPS", 9 if is_listed else 3)
    source = opened(late_seconds=0.001)
    orders.execute("ALTER SEQUENCE orders_id_seq INCREMENT BY 10")
    orders.execute("INSERT INTO orders (note) SELECT 'x' FROM generate_series(1, 5)")
    orders.execute("INSERT INTO orders (id) VALUES (1000)")
    before = [None, source.latest_offset(None)]
    orders.execute("INSERT INTO orders (id) VALUES (500), (1001)")
    before.append(source.latest_offset(before[-1]))
    place = Place.of(before[-1])
    assert (place.sparse is None) is is_listed
    assert place.table is not None
    read = [one for range in pairwise(before) for one in ids(orders, source, *range)]
    position = before[-1]
    if how == "restored elsewhere":
        cluster = replace(place.table.cluster, system=1)
        position = replace(place, table=replace(place.table, cluster=cluster)).text()
    else:
        orders.execute(INSERT)  # before anybody learns of it
        orders.execute("ALTER SEQUENCE orders_id_seq CACHE 2")
    after = [way_on(source, position)]
    with orders.connect() as slow:
        slow.execute(INSERT)
        orders.execute(INSERT)
        after.append(source.latest_offset(after[-1]))
        orders.execute(INSERT)
        after.append(source.latest_offset(after[-1]))
    after.append(source.latest_offset(after[-1]))
    read += [one for range in pairwise(after) for one in ids(orders, source, *range)]
    assert sorted(read) == [one for (one,) in orders.rows("SELECT id FROM orders ORDER BY id")]


def test_where_a_position_cannot_list_what_the_sequence_has_yet_to_give_no_way_on_passes_over_it_unsaid(
    opened: Any, orders: OrdersTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_module, "MOST_GAPS", 3)
    source = opened()
    orders.execute("INSERT INTO orders (id) VALUES (nextval('orders_id_seq')), (20), (30), (40), (50)")
    end = source.latest_offset(None)
    orders.execute("ALTER SEQUENCE orders_id_seq CACHE 2")
    said = (
        r"the same rows [^`]*: no command is named, since numbers from 2 on .* at 50 without gaps passes over them all"
    )
    with pytest.raises(SourceError, match=said):
        source.has_new(end)


def test_nor_does_one_behind_a_highest_row_that_lies_in_a_gap(opened: Any, orders: OrdersTable) -> None:
    source = opened(late_seconds=0.001)
    orders.execute("INSERT INTO orders (id) VALUES (nextval('orders_id_seq')), (1000)")
    end = source.latest_offset(None)
    orders.execute("DELETE FROM orders WHERE id = 1000")
    with orders.connect() as slow:
        slow.execute(INSERT)
        orders.execute(INSERT)
        ends = [way_on(source, end, "Where what lies at 3 or before was read")]
        ends.append(source.latest_offset(ends[-1]))
    ends.append(source.latest_offset(ends[-1]))
    assert [ids(orders, source, *range) for range in pairwise(ends)] == [[3], [2]]


def test_a_position_by_hand_that_waits_for_less_lies_after_the_one_of_the_same_number(
    opened: Any, orders: OrdersTable
) -> None:
    source = opened()
    orders.execute("INSERT INTO orders (id) VALUES (nextval('orders_id_seq')), (10), (20)")
    end = source.latest_offset(None)

    def by_hand(*gaps: tuple[int, int]) -> str:
        return Place(
            number=20, gaps=tuple(Gap(first=a, last=b, seen_ms=1, xmax=1) for a, b in gaps), by_hand=True
        ).text()

    waits = {
        "less": (by_hand((12, 19)), True),
        "nothing": (by_hand(), True),
        "the same": (by_hand((2, 9), (11, 19)), True),
        "more": (by_hand((2, 19)), False),
        "other ones": (by_hand((2, 10)), None),
    }
    for offset, is_after in waits.values():
        assert source.is_after(offset, end) is is_after
        assert source.is_after(end, offset) is (None if is_after is None else not is_after)
    assert source.is_after(waits["nothing"][0], waits["less"][0]) is True


def test_what_is_told_of_a_sequence_that_fills_the_column_no_more_can_be_typed_as_it_is(
    opened: Any, orders: OrdersTable
) -> None:
    orders.execute("""CREATE TABLE "Sold's" ("Id's" bigserial)""")
    source = opened("Sold's", column="Id's")
    ahead = [Gap(first=at, last=at, seen_ms=at * 86_400_000, xmax=NOT_TAKEN) for at in (2, 4)]
    told = str(source.waits_in_vain(Place(number=5, gaps=tuple(ahead)).text()))
    (setval,), (identity,) = re.findall(r"SELECT setval\(.*, N\)", told), re.findall("ALTER TABLE .*? IDENTITY", told)
    orders.execute(setval.replace(", N)", ", 8)"))
    assert orders.rows("""INSERT INTO "Sold's" DEFAULT VALUES RETURNING "Id's\"""") == [(9,)]
    orders.execute(f"{identity} IF EXISTS")


def way_on(source: OpenSource, position: str | None, where: str = "Where they are the same rows") -> str:
    """The position from which a source goes on by a command of its error.

    :param where: the case that the command is for.
    """
    with pytest.raises(SourceError) as raised:
        source.latest_offset(position)
    (offset,) = re.findall(rf"{where}[^`]*`microbatch [^`]*--offset '([^']*)'", str(raised.value))
    source.check_offset(offset)
    return str(offset)


def test_beyond_the_gaps_that_are_listed_what_ends_while_a_batch_is_planned_is_read_once(
    opened: Any, orders: OrdersTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at what runs and the snapshot, and with rows before the first gap alone."""
    monkeypatch.setattr(opened_module, "MOST_GAPS", 3)
    source, slow, execute = opened(), orders.connect(), psycopg.Connection.execute
    slow.execute("INSERT INTO orders (id) VALUES (1)")
    orders.execute("INSERT INTO orders (id) SELECT 10 * n FROM generate_series(1, 5) AS n")

    def then_commits(self: Any, statement: Any, *rest: Any, **options: Any) -> Any:
        found = execute(self, statement, *rest, **options)
        if "pg_snapshot_xip(" in str(statement):
            slow.commit()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(psycopg.Connection, "execute", then_commits)
        first = source.latest_offset(None)
    slow.close()
    assert Place.of(first).sparse is not None
    assert ids(orders, source, None, first) == [1, 10, 20, 30, 40, 50]
    assert not source.has_new(first)


def test_beyond_the_gaps_that_are_listed_rows_that_only_look_gone_are_not_skipped(
    opened: Any, orders: OrdersTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_module, "MOST_GAPS", 3)
    orders.execute("INSERT INTO orders (id) SELECT 10 * n FROM generate_series(1, 5) AS n")
    skips = opened(on_missing="skip")
    end = skips.latest_offset(None)
    place = Place.of(end)
    assert place.sparse is not None
    recycled = replace(place, sparse=replace(place.sparse, below=place.sparse.below - 2**32)).text()
    with pytest.raises(SourceChangedError, match=r"5 of 5 rows .*transactions have begun since"):
        skips.read(None, recycled)
    orders.execute("ALTER TABLE orders ALTER note TYPE int USING 1")
    with pytest.raises(SourceChangedError, match=r"'orders': 5 of 5 rows .*written anew since"):
        skips.read(None, end)
    assert "written anew" in skips.not_replayable(None, end)


def test_beyond_the_gaps_that_are_listed_rows_of_a_partition_that_was_written_anew_are_not_skipped(
    opened: Any, orders: OrdersTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_module, "MOST_GAPS", 3)
    in_two_partitions(orders, range(10, 60, 10), border=40)
    skips = opened(on_missing="skip")
    end = skips.latest_offset(None)
    assert Place.of(end).sparse is not None
    without(orders, [10])
    assert dict(skips.read(None, end).arguments["told"]) == {"left_out": 1}
    write_anew(orders, "upper")
    with pytest.raises(SourceChangedError, match=r"'orders': 3 of 5 rows .*partition, was written anew since"):
        skips.read(None, end)


def test_beyond_the_gaps_that_are_listed_a_lag_counts_no_more_than_the_most(
    opened: Any, orders: OrdersTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_module, "MOST_GAPS", 3)
    source = opened()
    with orders.connect() as slow:
        slow.execute("INSERT INTO orders (id) SELECT 10 * n + 5 FROM generate_series(1, 4) AS n")
        orders.execute("INSERT INTO orders (id) SELECT 10 * n FROM generate_series(1, 5) AS n")
        end = source.latest_offset(None)
    orders.execute("INSERT INTO orders (id) VALUES (60), (70)")
    assert source.lag(end).rows == 6
    for most in (3, 5):
        for module in (numbered, opened_module):
            monkeypatch.setattr(module, "MOST_COUNTED", most)
        assert source.lag(end).rows == most


@pytest.mark.parametrize(
    "is_untaken",
    [lambda at: False, lambda at: at < 99, lambda at: at % 3 == 0],
    ids=["all taken", "the first are not", "each third one is not"],
)
@pytest.mark.parametrize("count", [0, 1, 100, 101, 250, 401])
def test_joined_marks_wait_for_each_number_as_long_as_before_or_longer(
    count: int, is_untaken: Callable[[int], bool]
) -> None:
    """Numbers that no transaction had taken may lie before others that had been: nobody knew the sequence then."""
    marks = [Mark(first=10 * at, seen_ms=2 * at, xmax=NOT_TAKEN if is_untaken(at) else 3 * at) for at in range(count)]
    found = joined(marks)
    assert len(found) <= sparse_module.MOST_MARKS
    assert found[:1] == tuple(marks[:1]) or found[0].first == marks[0].first
    for mark in marks:
        kept = [one for one in found if one.first <= mark.first][-1]
        assert kept.seen_ms >= mark.seen_ms
        assert kept.xmax >= mark.xmax


@given(st.integers(0), st.lists(st.integers(1, 300), unique=True), st.lists(st.integers(1, 99), unique=True))
def test_a_place_in_a_sparse_column_is_read_as_it_was_written(number: int, ran: list[int], firsts: list[int]) -> None:
    marks = tuple(Mark(first=first, seen_ms=7, xmax=8) for first in sorted(firsts))
    spans = spans_of(sorted(ran))
    assert [one for first, last in spans for one in range(first, last + 1)] == sorted(ran)
    sparse = Sparse(since=1, below=301, running=spans, marks=marks, file=3, digest="-5")
    place = Place(number=number, rows=2, late=((1, 2),), sparse=sparse)
    assert Place.of(place.text()) == place
