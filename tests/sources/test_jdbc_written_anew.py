"""Live plans of a table of a real PostgreSQL that was written anew since data intervals were read: its rows have other
transactions, which tell no more that an interval has them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources import ReadLimit
from tests.sources.jdbc_world import write_anew
from tests.sources.lanes_of_a_table import InPostgres, Lanes, by_hand_at, here, hours, insert

pytestmark = pytest.mark.slow  # a database is started


@pytest.fixture
def lanes(lanes_of: Callable[..., Lanes], in_postgres: InPostgres) -> Lanes:
    return lanes_of(in_postgres)


def check_refused(lanes: Lanes, where: str) -> None:
    """Check that neither a plan nor a sensor goes on by what intervals have read."""
    begin = lanes.logs[LIVE][-1].end if lanes.logs[LIVE] else lanes.open().initial_offset()
    for ask in (lanes.live, lambda: lanes.open().has_new(begin)):
        with pytest.raises(SourceError, match=rf"up to 2026-09-21 17:00:00.*{where}.*written anew.* set-offset .*_2"):
            ask()


@pytest.mark.parametrize("is_read_since", [False, True])
def test_a_live_lane_that_never_had_a_row_doubles_no_interval(
    in_postgres: InPostgres, lanes: Lanes, is_read_since: bool
) -> None:
    insert(in_postgres, 1, 2, 3)
    assert lanes.interval("interval-a", hours(1, 2)) == [1]
    assert lanes.interval("interval-c", hours(3, 4)) == [3]
    in_postgres.table.execute("ALTER TABLE orders ALTER id TYPE int")
    if is_read_since:
        assert lanes.interval("interval-b", hours(2, 3)) == [2]
    check_refused(lanes, "the first row")
    here(lanes)
    insert(in_postgres, 3.5, 7)
    assert lanes.live() == [4, 5], "also behind the last row of an interval, and before its end"
    assert lanes.live() == []


@pytest.mark.parametrize("place", ["by hand", "read"])
def test_a_live_lane_before_intervals_doubles_none(in_postgres: InPostgres, lanes: Lanes, place: str) -> None:
    """The row that it had read is none of its window any more: of its own rows nothing tells that the table is
    another one."""
    insert(in_postgres, 0, 1, 3)
    assert lanes.live(ReadLimit(rows=1)) == [1]
    assert lanes.interval("interval-a", hours(1, 4)) == [2, 3]
    in_postgres.table.execute("DELETE FROM orders WHERE id = 1")
    write_anew(in_postgres.table, "orders")
    if place == "by hand":
        by_hand_at(lanes, "2026-09-21 16:00:00")
    check_refused(lanes, "2026-09-21 16:00:00" if place == "by hand" else "2026-09-21 14:00:00")
    here(lanes)
    insert(in_postgres, 5)
    assert lanes.live() == [4]


def test_a_command_that_sets_the_live_lane_to_the_first_row_is_leave_for_all_batches_behind_it(
    in_postgres: InPostgres, lanes: Lanes
) -> None:
    insert(in_postgres, 1, 2, 3)
    assert lanes.interval("interval-a", hours(1, 4)) == [1, 2, 3]
    write_anew(in_postgres.table, "orders")
    lanes.hold(LIVE, None, lanes.open().initial_offset())
    assert [lanes.live(ReadLimit(rows=1)) for _ in range(4)] == [[1], [2], [3], []]


def test_files_that_keep_each_row_its_transaction_stop_nothing(in_postgres: InPostgres, lanes: Lanes) -> None:
    insert(in_postgres, 1, 3)
    assert lanes.interval("interval-a", hours(1, 4)) == [1, 2]
    insert(in_postgres, 2)
    with in_postgres.table.connect(autocommit=True) as session:
        session.execute("VACUUM FULL orders")
    assert lanes.live() == [3]


@pytest.mark.parametrize("gone", ["UPDATE orders SET updated_at = {} WHERE id = 2", "DELETE FROM orders WHERE id = 2"])
@pytest.mark.parametrize("files", ["VACUUM FULL", "a new partition"])
def test_nor_do_other_files_where_an_interval_has_none_of_its_rows_any_more(
    in_postgres: InPostgres, lanes: Lanes, gone: str, files: str
) -> None:
    """A row that came late is in its times, and the rows that it had were changed or deleted."""
    if files == "a new partition":
        by_month(in_postgres)
    insert(in_postgres, 0, 2)
    assert lanes.live(ReadLimit(rows=1)) == [1]
    assert lanes.interval("interval-a", hours(1, 4)) == [2]
    in_postgres.table.execute(gone.format(in_postgres.at(6)))
    insert(in_postgres, 1.5)
    with in_postgres.table.connect(autocommit=True) as session:
        session.execute(
            "CREATE TABLE october PARTITION OF orders FOR VALUES FROM ('2026-10-01') TO ('2026-11-01')"
            if files == "a new partition"
            else "VACUUM FULL orders"
        )
    assert lanes.open().has_new(lanes.logs[LIVE][-1].end)
    assert lanes.live() == ([2, 3] if "UPDATE" in gone else [3])


@pytest.mark.parametrize("how", ["loaded", "made again"])
def test_a_partition_that_was_written_anew_stops_a_lane_before_its_intervals(
    in_postgres: InPostgres, lanes: Lanes, how: str
) -> None:
    """Rows of the other one are there as they were."""
    by_month(in_postgres)
    insert(in_postgres, -24 * 30, 0, 1, 3)
    assert lanes.live(ReadLimit(rows=2)) == [1, 2]
    assert lanes.interval("interval-a", hours(1, 4)) == [3, 4]
    if how == "made again":
        in_postgres.table.execute("CREATE TABLE kept AS SELECT * FROM september")
        in_postgres.table.execute("DROP TABLE september")
        in_postgres.table.execute(
            "CREATE TABLE september PARTITION OF orders FOR VALUES FROM ('2026-09-01') TO ('2026-10-01')"
        )
        in_postgres.table.execute("INSERT INTO september SELECT * FROM kept WHERE id > 2")
    else:
        in_postgres.table.execute("DELETE FROM orders WHERE id = 2")
        write_anew(in_postgres.table, "september")
    check_refused(lanes, "2026-09-21 14:00:00")


def by_month(orders: InPostgres) -> None:
    """Make the table anew, in partitions."""
    orders.table.execute("DROP TABLE orders CASCADE")
    orders.table.execute(
        "CREATE TABLE orders (id bigserial, note text, updated_at timestamptz) PARTITION BY RANGE (updated_at)"
    )
    for month, first, last in (("august", "2026-08-01", "2026-09-01"), ("september", "2026-09-01", "2026-10-01")):
        orders.table.execute(f"CREATE TABLE {month} PARTITION OF orders FOR VALUES FROM ('{first}') TO ('{last}')")
