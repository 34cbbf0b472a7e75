"""What lanes took of a table stays taken, and no more than that: what comes between a survey and its plan, positions by
hand, and tables that are other ones by now, on a real PostgreSQL and a real MariaDB."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import IntervalError, SourceError
from airflow_provider_microbatch.sources import ReadLimit
from airflow_provider_microbatch.sources.intervals import Interval
from airflow_provider_microbatch.sources.jdbc.moment import Moment, written
from tests.sources.lanes_of_a_table import (
    HOUR_MS,
    InMariaDb,
    InPostgres,
    Lanes,
    Orders,
    by_hand_at,
    here,
    hours,
    insert,
    made_again,
)

pytestmark = pytest.mark.slow  # a database is started


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["before it wrote", "amid the interval"])
def test_an_interval_of_mariadb_that_was_settled_is_not_cut_by_who_writes_behind_the_survey(
    lanes_of: Callable[..., Lanes], in_mariadb: InMariaDb, ends: str
) -> None:
    """A transaction that has written nothing is waited for by nobody; once it has it counts from its start."""
    lanes, orders = lanes_of(in_mariadb), in_mariadb.table
    start_ms = int(time.time() * 1000)
    if ends == "amid the interval":
        orders.execute("INSERT INTO orders (note) VALUES ('x')")
        time.sleep(2)  # InnoDB tells seconds
    with orders.connect() as slow:
        slow.execute("START TRANSACTION")
        slow.execute("SELECT count(*) FROM orders")
        time.sleep(1)
        orders.execute("INSERT INTO orders (note) VALUES ('y')")
        time.sleep(0.2)
        interval = Interval(start_ms=start_ms, end_ms=int(time.time() * 1000), whole=True)
        time.sleep(0.2)
        assert lanes.survey("interval-a", interval).waits is None
        slow.execute("INSERT INTO orders (note) VALUES ('slow')")
        with pytest.raises(IntervalError, match=r"may still be committed.*Try again"):
            lanes.interval("interval-a", interval)
        beside_live = lanes.interval("interval-b", replace(interval, whole=False))
        assert beside_live == ([1] if ends == "amid the interval" else []), "the live lane has the others"
    assert lanes.interval("interval-a", interval) == ([2] if beside_live else [1])


@pytest.mark.parametrize("what", ["the key", "the name"])
def test_what_lanes_took_stays_taken_where_the_table_has_another_key_or_name(
    orders: Orders, lanes_of: Callable[..., Lanes], what: str
) -> None:
    before = lanes_of(orders)
    insert(orders, 1)
    assert before.live() == [1]
    insert(orders, 2, 5, 5.5)
    assert before.interval("interval-a", hours(5, 6)) == [3, 4]
    if what == "the name":
        orders.table.execute("ALTER TABLE orders RENAME TO renamed")
    lanes = lanes_of(orders, column=None) if what == "the key" else lanes_of(orders, table="renamed")
    lanes.logs = before.logs
    here(lanes)
    if what == "the name" and isinstance(orders, InMariaDb):
        # InnoDB's ids are small: a table of another server may have the same one, and MariaDB does not tell servers.
        with pytest.raises(SourceError, match=r"orders.*renamed.*cannot be known"):
            lanes.live()
        with pytest.raises(SourceError, match=r"orders.*renamed.*cannot be known"):
            lanes.interval("interval-b", hours(0, 9))
        return
    source, begin = lanes.open(), lanes.logs[LIVE][-1].end
    assert source.describe(begin, source.latest_offset(begin)).rows == 1
    start, end = lanes.open("interval-b").plan_interval(hours(0, 9), lanes.held)
    assert start == end, "which has rows that were taken"


def test_a_position_by_hand_in_a_table_that_was_made_again_doubles_no_interval(orders: Orders, lanes: Lanes) -> None:
    insert(orders, 1)
    assert lanes.live() == [1]
    insert(orders, 2, 5, 5.5)
    assert lanes.interval("interval-a", hours(5, 6)) == [3, 4]
    made_again(orders)
    here(lanes)
    for ask in (lanes.live, lambda: lanes.open().has_new(lanes.logs[LIVE][-1].end)):
        with pytest.raises(SourceError, match=r"up to 2026-09-21 19:30:00.*made again.* set-offset .*add-source"):
            ask()
    here(lanes)
    orders.table.execute(f"INSERT INTO orders (id, updated_at) VALUES (9, {orders.at(7)})")
    assert lanes.open().has_new(lanes.logs[LIVE][-1].end)
    assert lanes.live() == [9]
    source = lanes.open()
    assert source.why_not_back(source.initial_offset(), lanes.logs[LIVE][-1].end) is None, "a user may say so"


@pytest.mark.parametrize("has_batches", [False, True])
def test_a_live_lane_that_never_had_a_row_doubles_no_interval_of_a_table_that_was_made_again(
    orders: Orders, lanes: Lanes, has_batches: bool
) -> None:
    insert(orders, 5, 5.5)
    assert lanes.interval("interval-a", hours(5, 6)) == [1, 2]
    if has_batches:  # of the pipeline's other sources
        begin = lanes.open().initial_offset()
        lanes.hold(LIVE, begin, begin)
    made_again(orders)
    begin = lanes.open().initial_offset()
    for ask in (lanes.live, lambda: lanes.open().has_new(begin)):
        with pytest.raises(SourceError, match=r"up to 2026-09-21 19:30:00.*made again.* set-offset .*add-source"):
            ask()
    here(lanes)
    orders.table.execute(f"INSERT INTO orders (id, updated_at) VALUES (9, {orders.at(7)})")
    assert lanes.live() == [9]


def test_a_live_lane_that_a_command_has_set_to_the_first_row_reads_from_there(orders: Orders, lanes: Lanes) -> None:
    insert(orders, 5, 5.5)
    assert lanes.interval("interval-a", hours(5, 6)) == [1, 2]
    made_again(orders)
    lanes.hold(LIVE, None, lanes.open().initial_offset())
    assert lanes.open().has_new(lanes.logs[LIVE][-1].end)
    assert lanes.live() == [1, 2]


def test_a_live_lane_that_never_had_a_row_doubles_no_interval_of_another_timestamp(
    orders: Orders, lanes_of: Callable[..., Lanes]
) -> None:
    kind = "datetime(6)" if isinstance(orders, InMariaDb) else "timestamptz"
    orders.table.execute(f"ALTER TABLE orders ADD COLUMN created_at {kind}")
    insert(orders, 5, 5.5)
    orders.table.execute("UPDATE orders SET updated_at = updated_at, created_at = updated_at")
    before, lanes = lanes_of(orders), lanes_of(orders, timestamp="created_at")
    assert before.interval("interval-a", hours(5, 6)) == [1, 2]
    with pytest.raises(SourceError, match=r"by updated_at, and it is read by created_at now.*add-source"):
        lanes.live()


@pytest.mark.parametrize("place", ["offered", "amid the interval", "its last moment"])
def test_a_position_behind_the_last_row_of_an_interval_passes_over_no_row_at_its_end(
    orders: Orders, lanes: Lanes, place: str
) -> None:
    """A position by hand counts the rows of its time as read, and the end of an interval is not part of it."""
    insert(orders, 1, 5)
    assert lanes.live(ReadLimit(rows=1)) == [1]
    assert lanes.interval("interval-a", hours(5, 6)) == [2]
    made_again(orders)
    orders.table.execute(f"INSERT INTO orders (id, updated_at) VALUES (8, {orders.at(6)}), (9, {orders.at(7)})")
    by_hand_at(lanes, "2026-09-21 15:00:00")
    if place == "offered":
        here(lanes)
    else:
        by_hand_at(lanes, "2026-09-21 19:30:00" if place == "amid the interval" else "2026-09-21 19:59:59.999999")
    assert lanes.live() == [8, 9]


def test_a_position_by_hand_amid_rows_of_the_last_time_of_an_interval_doubles_none(
    orders: Orders, lanes: Lanes
) -> None:
    insert(orders, 1, 5, 5)
    assert lanes.live(ReadLimit(rows=1)) == [1]
    assert lanes.interval("interval-a", hours(5, 6)) == [2, 3]
    made_again(orders)
    by_hand_at(lanes, Moment(time="2026-09-21 19:00:00", key=2))
    with pytest.raises(SourceError, match=r"up to 2026-09-21 19:00:00.*made again"):
        lanes.live()
    here(lanes)
    assert lanes.live() == []


def test_an_interval_that_reaches_into_the_future_is_no_bound_for_a_position_by_hand(
    lanes_of: Callable[..., Lanes], in_postgres: InPostgres
) -> None:
    """A backfill of the running day."""
    lanes, orders = lanes_of(in_postgres), in_postgres
    now_ms = int(time.time() * 1000)
    orders.table.execute(f"INSERT INTO orders (updated_at) VALUES ('{written(1000 * (now_ms - HOUR_MS))}+00')")
    day = Interval(start_ms=now_ms - 2 * HOUR_MS, end_ms=now_ms + 10 * HOUR_MS)
    assert lanes.interval("interval-day", day) == [1]
    orders.table.execute("INSERT INTO orders (updated_at) VALUES (current_timestamp)")
    assert lanes.live() == [2]
    made_again(orders)
    here(lanes)
    orders.table.execute("INSERT INTO orders (id, updated_at) VALUES (9, current_timestamp)")
    assert lanes.open().has_new(lanes.logs[LIVE][-1].end)
    assert lanes.live() == [9]


def test_an_interval_of_before_a_table_was_made_again_is_nobodys_to_take(orders: Orders, lanes: Lanes) -> None:
    insert(orders, 0, 1, 2)
    assert lanes.live() == [1, 2, 3]
    made_again(orders)
    here(lanes)
    orders.table.execute(f"INSERT INTO orders (id, updated_at) VALUES (9, {orders.at(4)})")
    assert lanes.live() == [9]
    for ask in (lanes.survey, lanes.interval):
        with pytest.raises(SourceError, match=r"made again.*add-source"):
            ask("interval-b", hours(0, 2))
    assert lanes.interval("interval-c", hours(3, 5)) == [], "which the live lane has in the new table"


@pytest.mark.parametrize("kept", [0, 1])
def test_what_a_position_by_hand_passes_over_is_nobodys_though_it_was_claimed_before(
    orders: Orders, lanes: Lanes, kept: int
) -> None:
    """Behind a rewind with the output, or a planner that died between its claim and its entry."""
    for hour in (1, 2):
        insert(orders, hour)
        assert lanes.live() == [hour]
    del lanes.logs[LIVE][kept:]
    by_hand_at(lanes, "2026-09-21 17:30:00")
    survey = lanes.survey("interval-a", hours(0, 3))
    assert (survey.unread, survey.elsewhere, survey.left) == (True, 0, 0)
    insert(orders, 4)
    assert lanes.live() == [3]
    lanes.retain(2)
    survey = lanes.survey("interval-a", hours(0, 3))
    assert (survey.unread, survey.left) == (True, 0)
    assert lanes.interval("interval-a", hours(0, 3)) == [1, 2][kept:]


def test_a_rewind_and_a_batch_behind_it_claim_no_more_than_the_log_has(orders: Orders, lanes: Lanes) -> None:
    insert(orders, 1, 2, 3)
    assert lanes.live(ReadLimit(rows=2)) == [1, 2]
    assert lanes.live() == [3]
    lanes.logs[LIVE].clear()
    assert lanes.live(ReadLimit(rows=1)) == [1]
    by_hand_at(lanes, "2026-09-21 17:30:00")
    insert(orders, 4)
    assert lanes.live() == [4]
    assert lanes.interval("interval-a", hours(0, 4)) == [2, 3]


def test_a_position_by_hand_that_lies_further_back_gives_nothing_up(orders: Orders, lanes: Lanes) -> None:
    for hour in (1, 2, 3):
        insert(orders, hour)
        assert lanes.live() == [hour]
    by_hand_at(lanes, "2026-09-21 15:30:00")
    assert lanes.live(ReadLimit(rows=1)) == [2]
    lanes.retain(1)
    by_hand_at(lanes, "2026-09-21 19:00:00")
    insert(orders, 6)
    assert lanes.live() == [4]
    assert lanes.interval("interval-a", hours(0, 5)) == []


@pytest.mark.parametrize("claims", ["kept", "from before claims were kept"])
def test_a_position_by_hand_with_a_zone_is_the_same_moment_in_each_look(
    orders: Orders, lanes: Lanes, tmp_path: Path, claims: str
) -> None:
    """17:30 of a zone that is two hours ahead is 15:30 UTC."""
    insert(orders, 1, 2, 3)
    by_hand_at(lanes, "2026-09-21 17:30:00+02:00")
    assert lanes.live() == [2, 3]
    if claims != "kept":
        (tmp_path / "checkpoint" / "state" / "taken").unlink()
    survey = lanes.survey("interval-a", hours(0, 9))
    assert (survey.unread, survey.elsewhere, survey.left) == (True, 0, 0)
    assert survey.holders == {BatchKey(LIVE, 1)}
    insert(orders, 4)
    assert lanes.live() == [4]
    assert lanes.interval("interval-a", hours(0, 9)) == [1]


def test_a_live_plan_behind_a_position_by_hand_has_its_rows_before_its_entry_is_there(
    orders: Orders, lanes: Lanes
) -> None:
    insert(orders, 1)
    assert lanes.live() == [1]
    insert(orders, 2, 4)
    begin = by_hand_at(lanes, "2026-09-21 17:30:00")
    end = lanes.open().latest_offset(begin)
    assert lanes.interval("interval-a", hours(0, 9)) == [2]
    assert lanes.put(LIVE, begin, end) == [3]


def test_a_log_that_retention_left_positions_by_hand_alone_gives_nothing_up(orders: Orders, lanes: Lanes) -> None:
    """As behind batches of another source of the pipeline, while this one had nothing new."""
    insert(orders, 1, 2)
    assert lanes.live() == [1, 2]
    for _ in range(3):
        by_hand_at(lanes, "2026-09-21 19:00:00")
    lanes.retain(2)
    survey = lanes.survey("interval-a", hours(0, 4))
    assert (survey.unread, survey.elsewhere, survey.left) == (False, 2, 2)
    assert lanes.interval("interval-a", hours(0, 4)) == []
    insert(orders, 6)
    assert lanes.live() == [3]
    assert not lanes.survey("interval-a", hours(0, 4)).unread
    assert lanes.interval("interval-b", hours(0, 9)) == []


def test_claims_of_before_what_retention_left_reach_as_far_as_they_did(orders: Orders, lanes: Lanes) -> None:
    """The lane was set back to the first row, and has read one again since."""
    insert(orders, 1, 2, 3)
    assert lanes.live() == [1, 2, 3]
    by_hand_at(lanes, None)
    assert lanes.live(ReadLimit(rows=1)) == [1]
    lanes.retain(1)
    by_hand_at(lanes, "2026-09-21 19:00:00")
    insert(orders, 6)
    assert lanes.live() == [4]
    assert lanes.interval("interval-a", hours(0, 5)) == []


def test_a_position_of_before_that_was_set_is_no_batch_and_gives_nothing_up(orders: Orders, lanes: Lanes) -> None:
    """A user may set the position that an entry of the log has."""
    insert(orders, 1, 2, 3)
    assert lanes.live(ReadLimit(rows=1)) == [1]
    assert lanes.live() == [2, 3]
    first, second = (one.end for one in lanes.logs[LIVE])
    lanes.hold(LIVE, second, first)
    lanes.hold(LIVE, first, first)
    lanes.retain(1)
    by_hand_at(lanes, "2026-09-21 19:00:00")
    insert(orders, 6)
    assert lanes.live() == [4]
    assert lanes.interval("interval-a", hours(0, 5)) == []


def test_what_a_rewind_took_back_behind_a_position_by_hand_is_given_up(orders: Orders, lanes: Lanes) -> None:
    insert(orders, 1, 2, 3)
    assert lanes.live(ReadLimit(rows=1)) == [1]
    by_hand_at(lanes, "2026-09-21 15:30:00")
    assert lanes.live() == [2, 3]
    del lanes.logs[LIVE][1:]
    assert lanes.live(ReadLimit(rows=1)) == [2]
    by_hand_at(lanes, "2026-09-21 19:00:00")
    insert(orders, 6)
    assert lanes.live() == [4]
    assert lanes.interval("interval-a", hours(0, 5)) == [3]


def test_what_the_table_of_before_had_is_no_place_of_the_one_that_was_made_again(orders: Orders, lanes: Lanes) -> None:
    insert(orders, 1, 2, 3)
    assert lanes.live() == [1, 2, 3]
    made_again(orders)
    by_hand_at(lanes, None)
    assert lanes.live(ReadLimit(rows=1)) == [1]
    lanes.open().latest_offset(lanes.logs[LIVE][-1].end)
    by_hand_at(lanes, "2026-09-21 19:00:00")
    assert lanes.survey("interval-a", hours(0, 5)).unread
    orders.table.execute(f"INSERT INTO orders (id, updated_at) VALUES (9, {orders.at(6)})")
    assert lanes.live() == [9]
    survey = lanes.survey("interval-a", hours(0, 5))
    assert (survey.elsewhere, survey.left) == (0, 0)
    assert lanes.interval("interval-a", hours(0, 5)) == [2, 3]


def test_two_planners_behind_a_position_by_hand_give_up_nothing_of_each_other(orders: Orders, lanes: Lanes) -> None:
    """The one that claimed first has its entry there first, and reaches further."""
    insert(orders, 1)
    assert lanes.live() == [1]
    insert(orders, 2, 4, 5)
    begin = by_hand_at(lanes, "2026-09-21 17:30:00")
    end = lanes.open().latest_offset(begin)
    assert lanes.open().latest_offset(begin, ReadLimit(rows=1)) != end
    assert lanes.interval("interval-a", hours(3, 9)) == []
    assert lanes.put(LIVE, begin, end) == [3, 4]
    insert(orders, 6)
    assert lanes.live() == [5]
    assert lanes.interval("interval-b", hours(0, 9)) == [2]


def test_a_key_tells_nothing_of_another_column(orders: Orders, lanes_of: Callable[..., Lanes]) -> None:
    """Behind a change of the column rows of the last time are those that the offered position counts as read."""
    orders.table.execute("ALTER TABLE orders ADD COLUMN seq bigint NOT NULL DEFAULT 0")
    for seq in (9, 8, 7):
        orders.table.execute(f"INSERT INTO orders (seq, updated_at) VALUES ({seq}, {orders.at(1)})")
    before, lanes = lanes_of(orders), lanes_of(orders, column="seq")
    assert before.live() == [1, 2, 3]
    lanes.logs = before.logs
    here(lanes)
    survey = lanes.survey("interval-a", hours(0, 9))
    assert (survey.unread, survey.elsewhere, survey.left) == (False, 0, 0)
    assert survey.holders == {BatchKey(LIVE, 0)}
    assert lanes.interval("interval-a", hours(0, 9)) == []
    orders.table.execute(f"INSERT INTO orders (seq, updated_at) VALUES (1, {orders.at(4)})")
    assert lanes.live() == [4]
    assert lanes.interval("interval-b", hours(0, 9)) == []


def test_a_row_of_the_time_of_a_position_with_a_key_that_is_committed_late_is_read_once(
    lanes_of: Callable[..., Lanes], in_postgres: InPostgres
) -> None:
    """A live batch reads it behind the position, since its transaction was not over."""
    lanes = lanes_of(in_postgres)
    insert(in_postgres, 1, 1)
    assert lanes.live() == [1, 2]
    by_hand_at(lanes, Moment(time="2026-09-21 15:00:00+00", key=2))
    with in_postgres.table.connect() as slow:
        slow.execute(f"INSERT INTO orders (id, updated_at) VALUES (-5, {in_postgres.at(1)})")
        insert(in_postgres, 2)
        assert lanes.live() == [3]
    assert lanes.live() == [-5]
    assert lanes.interval("interval-a", hours(0.5, 1.5)) == []


@pytest.mark.parametrize("key", ["seq", None])
def test_a_position_with_a_key_gives_nothing_of_its_time_up_once_the_key_is_another_column(
    orders: Orders, lanes_of: Callable[..., Lanes], key: str | None
) -> None:
    orders.table.execute("ALTER TABLE orders ADD COLUMN seq bigint NOT NULL DEFAULT 0")
    before, lanes = lanes_of(orders), lanes_of(orders, column=key)
    insert(orders, 0, 1, 1, 1)
    by_hand_at(before, Moment(time="2026-09-21 15:00:00", key=2))
    assert before.live() == [3, 4]
    lanes.logs = before.logs
    here(lanes)
    assert lanes.interval("interval-a", hours(0, 3)) == [1], "2 counts as read"


@pytest.mark.parametrize("key", ["seq", None])
def test_a_batch_of_an_interval_is_read_by_the_key_that_it_was_planned_by(
    orders: Orders, lanes_of: Callable[..., Lanes], key: str | None
) -> None:
    """Of the last time of the live lane it has the rows behind a key, which tells nothing of another column."""
    orders.table.execute("ALTER TABLE orders ADD COLUMN seq bigint NOT NULL DEFAULT 0")
    before, lanes = lanes_of(orders), lanes_of(orders, column=key)
    insert(orders, 1, 1)
    assert before.live(ReadLimit(rows=1)) == [1]
    assert before.interval("interval-a", hours(0, 2)) == [2]
    [planned] = before.logs["interval-a"]
    source = lanes.open("interval-a")
    assert source.not_replayable(planned.start, planned.end) is None
    assert orders.ids(source, planned.start, planned.end) == [2]
    lanes.logs = before.logs
    del lanes.logs["interval-a"]  # it was rewound
    assert lanes.interval("interval-a", hours(0, 2)) == [2]


def test_what_an_interval_has_taken_of_another_table_for_no_batch_is_not_its_batch(
    orders: Orders, lanes: Lanes
) -> None:
    insert(orders, 1, 2, 3)
    assert lanes.live(ReadLimit(rows=1)) == [1]
    assert lanes.interval("interval-a", hours(1.5, 2.5)) == [2]
    del lanes.logs["interval-a"]
    made_again(orders)
    assert lanes.open().taken_by() == {"interval-a"}, "no lane reads it"
    by_hand_at(lanes, None)
    assert lanes.live(ReadLimit(rows=1)) == [1]
    assert lanes.open().taken_by() == set(), "the live lane does, from the first row on"
    assert lanes.survey("interval-a", hours(1.5, 2.5)).unread
    assert lanes.interval("interval-a", hours(1.5, 2.5)) == [2]
    assert lanes.open().taken_by() == {"interval-a"}
    assert lanes.live() == [3]
    [planned] = lanes.logs["interval-a"]
    assert lanes.open("interval-a").not_replayable(planned.start, planned.end) is None


@pytest.mark.parametrize("key", ["seq", None])
def test_what_an_interval_has_is_left_out_of_live_batches_by_the_key_that_it_was_planned_by(
    orders: Orders, lanes_of: Callable[..., Lanes], key: str | None
) -> None:
    orders.table.execute("ALTER TABLE orders ADD COLUMN seq bigint NOT NULL DEFAULT 0")
    before, lanes = lanes_of(orders), lanes_of(orders, column=key)
    insert(orders, 1, 1)
    orders.table.execute("UPDATE orders SET updated_at = updated_at, seq = CASE WHEN id = 1 THEN 200 ELSE 1 END")
    assert before.live(ReadLimit(rows=1)) == [1]
    assert before.interval("interval-a", hours(0, 2)) == [2]
    [planned] = before.logs["interval-a"]
    lanes.logs = before.logs
    lanes.logs[LIVE].clear()  # it was rewound
    assert lanes.open("interval-a").why_not_anew(planned.start, planned.end) is None
    assert lanes.live() == [1]
    assert list(lanes.again().values()) == [[1], [2]]


def test_rows_between_a_place_of_another_table_and_one_of_this_are_not_counted(orders: Orders, lanes: Lanes) -> None:
    insert(orders, 5, 5)
    assert lanes.live() == [1, 2]
    before = lanes.logs[LIVE][-1].end
    made_again(orders)
    orders.table.execute("DELETE FROM orders")
    insert(orders, 1, 2, 6)
    assert lanes.open().between_in_words(before, Moment(time="2026-09-21 21:00:00").text()) == {}


def test_lanes_that_have_taken_rows_are_told_where_the_database_cannot_be_asked(
    lanes: Lanes, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken data without a batch is told of by the checkpoint alone."""
    insert(orders, 1)
    assert lanes.interval("interval-a", hours(0, 2)) == [1]
    monkeypatch.setattr(orders, "connection", replace(orders.connection, port=1))
    assert lanes.open().taken_by() == {"interval-a"}
