"""What one lane takes of a table no other lane reads, in either direction: on a real PostgreSQL and a real MariaDB."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import (
    CorruptEntryError,
    IntervalError,
    SourceChangedError,
    SourceError,
)
from airflow_provider_microbatch.sources import ReadLimit
from airflow_provider_microbatch.sources.intervals import HeldRange, Interval, Unread
from airflow_provider_microbatch.sources.jdbc.moment import Moment
from airflow_provider_microbatch.sources.jdbc.taken import Taken
from tests.sources.jdbc_world import in_two_partitions, write_anew
from tests.sources.lanes_of_a_table import HOUR_MS, T0, InMariaDb, InPostgres, Lanes, Orders, by_hand_at, hours, insert

pytestmark = pytest.mark.slow  # a database is started

YEAR = 365 * 24
DAY_SECONDS = 86_400


def test_an_interval_has_the_rows_of_its_times_and_the_live_lane_has_the_others(orders: Orders, lanes: Lanes) -> None:
    insert(orders, 0, 1, 1.5, 2, 3)
    assert lanes.survey("interval-a", hours(1, 2)).unread
    assert lanes.interval("interval-a", hours(1, 2)) == [2, 3]
    assert lanes.live(ReadLimit(rows=2)) == [1, 4]
    assert lanes.interval("interval-b", hours(1, 4)) == [5]
    source, position = lanes.open(), lanes.logs[LIVE][-1].end
    assert (source.has_new(position), source.lag(position).rows, lanes.live()) == (False, 0, [])
    assert not lanes.survey("interval-c", hours(0, 9)).unread
    assert lanes.interval("interval-c", hours(0, 9)) == []
    assert lanes.again() == {"interval-a/0": [2, 3], "live/0": [1, 4], "interval-b/0": [5]}


def test_until_an_interval_is_planned_the_survey_writes_nothing(orders: Orders, lanes: Lanes, tmp_path: Path) -> None:
    insert(orders, 1)
    lanes.survey("interval-a", hours(1, 2))
    assert not (tmp_path / "checkpoint").exists()
    assert lanes.interval("interval-a", hours(2, 3)) == []
    assert not (tmp_path / "checkpoint").exists(), "nothing is taken where there is nothing"


def test_a_lane_that_died_before_its_entry_was_there_has_what_it_took(orders: Orders, lanes: Lanes) -> None:
    insert(orders, 1, 2)
    planned = lanes.open("interval-a").plan_interval(hours(1, 2), lanes.held)
    insert(orders, 1.5 if isinstance(orders, InPostgres) else 2.5)  # MariaDB's may not come so late
    assert lanes.survey("interval-a", hours(1, 9)).unread
    assert lanes.open("interval-a").plan_interval(hours(1, 9), lanes.held) == planned
    assert lanes.live() == [2, 3]
    assert lanes.put("interval-a", *planned) == [1]


def test_a_live_plan_that_died_is_made_again_by_the_live_lane_alone(orders: Orders, lanes: Lanes) -> None:
    insert(orders, 1, 2)
    lanes.open().latest_offset(lanes.open().initial_offset())
    survey = lanes.survey("interval-a", hours(1, 2))
    assert (survey.unread, survey.elsewhere, survey.left, survey.splits) == (False, 1, 1, "rows")
    assert lanes.interval("interval-a", hours(1, 2)) == []
    assert lanes.live() == [1, 2]
    survey = lanes.survey("interval-a", hours(1, 2))
    assert (survey.holders, survey.elsewhere, survey.left) == ({BatchKey(LIVE, 0)}, 0, 0)


@pytest.mark.parametrize("is_first_entry", [True, False])
@pytest.mark.parametrize("first", ["live", "interval"])
def test_of_two_lanes_that_look_at_the_same_rows_at_once_one_has_them(
    orders: Orders, lanes: Lanes, monkeypatch: pytest.MonkeyPatch, first: str, is_first_entry: bool
) -> None:
    """The first one has written when the other is about to, after it has looked."""
    insert(orders, 1, 1.5, 2)
    if not is_first_entry:
        insert(orders, 9)
        assert lanes.interval("interval-0", hours(9, 10)) == [4]
    between = {"live": lambda: lanes.live(), "interval": lambda: lanes.interval("interval-a", hours(1, 2))}
    had = list[list[int]]()

    def after_the_other(write: Any) -> Any:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            monkeypatch.undo()
            had.append(between[first]())
            return write(*arguments, **named)

        return wrapped

    name = "take" if first == "live" else "claim"
    monkeypatch.setattr(Taken, name, after_the_other(getattr(Taken, name)))
    last = lanes.interval("interval-a", hours(1, 2)) if first == "live" else lanes.live()
    assert (had, last) == (([[1, 2, 3]], []) if first == "live" else ([[1, 2]], [3]))


def test_what_is_committed_behind_an_interval_is_read_by_the_live_lane_once(
    lanes_of: Callable[..., Lanes], in_postgres: InPostgres
) -> None:
    orders, lanes = in_postgres, lanes_of(in_postgres, late_seconds=DAY_SECONDS)
    insert(orders, 3)
    with orders.table.connect() as slow:
        slow.execute(f"INSERT INTO orders (updated_at) VALUES ({orders.at(1)})")
        insert(orders, 1.5)
        assert lanes.interval("interval-a", hours(1, 2)) == [3]
        assert lanes.live() == [1]
    assert lanes.live() == [2]
    assert lanes.live() == []
    assert lanes.again() == {"interval-a/0": [3], "live/0": [1], "live/1": [2]}


def test_rows_of_the_newest_transaction_of_all_are_read_behind_an_interval_and_a_live_batch(
    lanes_of: Callable[..., Lanes], in_postgres: InPostgres
) -> None:
    """Of those that had ended none was as new, so that no snapshot named it."""
    orders, lanes = in_postgres, lanes_of(in_postgres, late_seconds=60)
    insert(orders, 1.5, 9)
    with orders.table.connect() as slow:
        slow.execute(f"INSERT INTO orders (updated_at) VALUES ({orders.at(1)}), ({orders.at(2)})")
        assert lanes.interval("interval-a", hours(1, 2)) == [1]
        assert lanes.live() == [2]
    assert lanes.interval("interval-b", hours(2, 3)) == [4]
    assert lanes.live() == [3]
    assert lanes.again() == {"interval-a/0": [1], "live/0": [2], "interval-b/0": [4], "live/1": [3]}


def test_what_is_committed_behind_an_interval_is_late_for_a_later_one(
    lanes_of: Callable[..., Lanes], in_postgres: InPostgres
) -> None:
    orders, lanes = in_postgres, lanes_of(in_postgres, late_seconds=7200)
    with orders.table.connect() as slow:
        slow.execute(f"INSERT INTO orders (updated_at) VALUES ({orders.at(1)})")
        insert(orders, 1.5)
        assert lanes.interval("interval-a", hours(1, 2)) == [2]
    insert(orders, 2.5)
    ms = T0 + HOUR_MS
    unread = Unread(count=1, first_ms=ms, last_ms=ms, splits="rows")
    assert lanes.survey("interval-b", hours(2, 3)).passed == unread
    assert lanes.survey("interval-b", hours(4, 5)).passed == Unread(
        count=1, first_ms=ms + HOUR_MS * 3 // 2, last_ms=ms + HOUR_MS * 3 // 2, splits="rows"
    ), "it tells of the window alone"
    assert lanes.survey("interval-b", hours(2, 3, late=((1, 2),))).passed is None
    assert lanes.interval("interval-b", hours(2, 3, late=((1, 2),))) == [1, 3]
    assert lanes.interval("interval-c", hours(3, 4, late=((0, 3),))) == []
    assert lanes.again() == {"interval-a/0": [2], "interval-b/0": [1, 3]}


@pytest.mark.slow
def test_an_interval_of_mariadb_waits_until_nothing_can_be_committed_in_it(
    lanes_of: Callable[..., Lanes], in_mariadb: InMariaDb
) -> None:
    lanes, now = lanes_of(in_mariadb), int(time.time() * 1000)
    interval = Interval(start_ms=now - HOUR_MS, end_ms=now + HOUR_MS)
    with in_mariadb.table.connect() as slow:
        slow.execute("INSERT INTO orders (note) VALUES ('slow')")
        in_mariadb.table.execute("INSERT INTO orders (note) VALUES ('x')")
        survey = lanes.survey("interval-a", interval)
        assert "may still be committed" in (survey.waits or "")
        assert not survey.unread, "what is younger than who writes may not be read"
        assert lanes.interval("interval-a", interval) == []
    in_mariadb.table.execute(f"INSERT INTO orders (updated_at) VALUES ({in_mariadb.at(0)})")
    past = Interval(start_ms=T0, end_ms=T0 + HOUR_MS)
    assert lanes.survey("interval-b", past).waits is None
    while not lanes.survey("interval-a", interval).unread:
        pass
    assert lanes.interval("interval-a", interval) == [1, 2]
    in_mariadb.table.execute("INSERT INTO orders (note) VALUES ('later')")
    assert lanes.live() == [3, 4], "behind what was readable then, and the interval that is not planned"


def test_rows_without_a_time_or_of_no_time_are_in_no_interval(
    lanes_of: Callable[..., Lanes], in_postgres: InPostgres
) -> None:
    lanes = lanes_of(in_postgres)
    in_postgres.table.execute("INSERT INTO orders (updated_at) VALUES (NULL), ('infinity'), ('-infinity')")
    insert(in_postgres, 1)
    everything = hours(-20 * YEAR, 20 * YEAR)
    survey = lanes.survey("interval-a", everything)
    assert (survey.unread, survey.elsewhere, survey.passed) == (True, 0, None)
    assert lanes.interval("interval-a", everything) == [4]
    assert "3 rows" in (lanes.open().not_read() or "")


def test_a_row_that_gets_another_time_comes_again_and_is_missed_where_it_was(orders: Orders, lanes: Lanes) -> None:
    insert(orders, 1, 1.5)
    assert lanes.interval("interval-a", hours(1, 2)) == [1, 2]
    orders.table.execute(f"UPDATE orders SET updated_at = {orders.at(3)} WHERE id = 1")
    assert lanes.interval("interval-b", hours(3, 4)) == [1]
    (planned,) = lanes.logs["interval-a"]
    with pytest.raises(SourceChangedError, match="1 of 2 rows"):
        lanes.open("interval-a").read(planned.start, planned.end)
    assert "1 of 2 rows" in (lanes.open("interval-a").not_replayable(planned.start, planned.end) or "")
    # As behind a rewind: the batch is planned again, with what is left of it.
    lanes.logs["interval-a"].clear()
    assert lanes.interval("interval-a", hours(1, 2)) == [2]


def test_holders_are_the_batches_whose_rows_the_interval_has(orders: Orders, lanes: Lanes) -> None:
    insert(orders, 0, 1, 2, 3, 4)
    for _ in range(3):
        lanes.live(ReadLimit(rows=1))
    assert lanes.interval("interval-a", hours(3, 4)) == [4]
    survey = lanes.survey("interval-b", hours(1, 5))
    assert survey.holders == {BatchKey(LIVE, 1), BatchKey(LIVE, 2), BatchKey("interval-a", 0)}
    assert (survey.unread, survey.elsewhere, survey.left) == (True, 0, 0)
    lanes.logs[LIVE] = lanes.logs[LIVE][2:]  # as retention does
    lanes.logs.pop("interval-a")
    survey = lanes.survey("interval-b", hours(1, 5))
    assert (survey.holders, survey.elsewhere, survey.left) == ({BatchKey(LIVE, 2)}, 2, 0)


def test_what_lies_at_a_position_by_hand_or_before_is_free_for_intervals(orders: Orders, lanes: Lanes) -> None:
    insert(orders, 1, 2, 3)
    by_hand = Moment(time="2026-09-21 16:00:00").text()
    lanes.logs[LIVE] = [HeldRange(key=BatchKey(LIVE, 0), start=lanes.open().initial_offset(), end=by_hand)]
    assert lanes.live() == [3]
    insert(orders, 4, 2)
    assert lanes.live() == [4], "and not what came at the very time"
    assert lanes.interval("interval-a", hours(0, 9)) == [1, 2, 5]
    assert lanes.again()["live/1"] == [3]


@pytest.mark.parametrize("to", ["2026-09-21 15:30:00", "2026-09-21 16:30:00"])
def test_what_a_live_log_has_from_before_claims_were_kept_is_free_for_no_interval_behind_a_position_by_hand(
    orders: Orders, lanes: Lanes, tmp_path: Path, to: str
) -> None:
    """15:30 lies before the end of the log, 16:30 behind it."""
    insert(orders, 1, 2)
    assert lanes.live() == [1, 2]
    (tmp_path / "checkpoint" / "state" / "taken").unlink()
    by_hand_at(lanes, to)
    insert(orders, 4)
    assert lanes.live()[-1] == 3
    assert lanes.interval("interval-a", hours(0, 3)) == []
    assert not lanes.survey("interval-b", hours(0, 3)).unread


def test_a_live_log_that_began_by_hand_before_claims_were_kept_leaves_what_lies_before_to_intervals(
    orders: Orders, lanes: Lanes, tmp_path: Path
) -> None:
    insert(orders, 1, 2, 3)
    by_hand_at(lanes, "2026-09-21 15:30:00")
    assert lanes.live() == [2, 3]
    (tmp_path / "checkpoint" / "state" / "taken").unlink()
    assert lanes.survey("interval-a", hours(0, 9)).unread
    insert(orders, 4)
    assert lanes.live() == [4]
    assert lanes.interval("interval-a", hours(0, 9)) == [1]


def test_a_live_lane_that_began_by_hand_and_is_taken_back_leaves_what_lies_before_to_intervals(
    orders: Orders, lanes: Lanes
) -> None:
    insert(orders, 1, 2)
    by_hand_at(lanes, "2026-09-21 15:30:00")
    assert lanes.live() == [2]
    for hour in (3, 4):
        insert(orders, hour)
        assert lanes.live() == [hour]
    del lanes.logs[LIVE][2:]  # a rewind: the next range begins where a claim ended that is no longer kept
    insert(orders, 5)
    assert lanes.live() == [3, 4, 5]
    assert lanes.interval("interval-a", hours(0, 9)) == [1]


def test_a_live_plan_by_hand_that_died_twice_leaves_what_lies_before_to_intervals(orders: Orders, lanes: Lanes) -> None:
    insert(orders, 1, 2)
    by_hand_at(lanes, "2026-09-21 15:30:00")
    assert lanes.live() == [2]
    end = lanes.logs[LIVE][-1].end
    for hour in (3, 4):
        insert(orders, hour)
        lanes.open().latest_offset(end)
    assert lanes.live() == [3, 4]
    assert lanes.interval("interval-a", hours(0, 9)) == [1]


BERLIN_HOUR_2026 = 1_792_886_400_000
"""2026-10-25 00:00 UTC: clocks show 2, and an hour later they are put back from 3 to 2."""


@pytest.fixture
def without_a_zone(orders: Orders) -> Orders:
    kind = "timestamp" if isinstance(orders, InPostgres) else "datetime(6)"
    orders.table.execute("ALTER TABLE orders DROP COLUMN updated_at")
    orders.table.execute(f"ALTER TABLE orders ADD updated_at {kind}")
    return orders


def test_an_interval_is_in_utc_and_a_column_in_its_zone(lanes_of: Callable[..., Lanes], without_a_zone: Orders) -> None:
    orders, lanes = without_a_zone, lanes_of(without_a_zone, time_zone="Asia/Tokyo", late_seconds=3600)
    for at in ("2026-01-01 08:59:59.999999", "2026-01-01 09:00", "2026-01-01 09:59:59.999999", "2026-01-01 10:00"):
        orders.table.execute(f"INSERT INTO orders (updated_at) VALUES ('{at}')")
    ms = 1_767_225_600_000
    interval = Interval(start_ms=ms, end_ms=ms + HOUR_MS)
    assert lanes.survey("interval-a", interval).passed == Unread(
        count=1, first_ms=ms - 1, last_ms=ms - 1, splits="rows"
    )
    assert lanes.interval("interval-a", interval) == [2, 3]
    assert lanes.live() == [1, 4]


def test_where_clocks_are_put_back_or_forward_each_row_is_in_one_interval(
    lanes_of: Callable[..., Lanes], without_a_zone: Orders
) -> None:
    orders = without_a_zone
    lanes = lanes_of(orders, time_zone="Europe/Berlin", late_seconds=1)
    autumn, spring = BERLIN_HOUR_2026, BERLIN_HOUR_2026 - 210 * 24 * HOUR_MS  # 2026-03-29 00:00 UTC
    times = ["2026-10-25 01:59", "2026-10-25 02:00", "2026-10-25 02:45", "2026-10-25 03:00"]
    times += ["2026-03-29 01:59", "2026-03-29 02:30", "2026-03-29 03:00"]  # which has no 02:30
    for at in times:
        orders.table.execute(f"INSERT INTO orders (updated_at) VALUES ('{at}')")

    def half_hours(start: int, first: float, last: float) -> Interval:
        return Interval(start_ms=start + round(first * HOUR_MS), end_ms=start + round(last * HOUR_MS))

    found = [
        lanes.interval(f"interval-{first}", half_hours(autumn, first, last))
        for first, last in ((-1, 0), (0, 0.5), (0.5, 1.5), (1.5, 2.5), (2.5, 3.5))
    ]
    assert found == [[1], [2], [3], [4], []]
    if isinstance(orders, InPostgres):  # MariaDB's interval waits until clocks have shown its times twice
        orders.table.execute("INSERT INTO orders (updated_at) VALUES ('2026-10-25 02:10')")
        assert lanes.interval("interval-again", half_hours(autumn, 0.75, 1.25)) == [8]
    assert lanes.interval("interval-before", half_hours(spring, 0, 1)) == [5]
    assert lanes.interval("interval-behind", half_hours(spring, 1, 2)) == [6, 7]


def test_a_table_that_was_made_again_is_no_longer_told_by_what_lanes_have_taken(orders: Orders, lanes: Lanes) -> None:
    insert(orders, 1, 2)
    assert lanes.interval("interval-a", hours(1, 2)) == [1]
    orders.table.execute("ALTER TABLE orders RENAME TO before_it")
    if isinstance(orders, InPostgres):
        orders.table.execute("CREATE TABLE orders (id bigserial PRIMARY KEY, updated_at timestamptz)")
    else:
        orders.table.execute("CREATE TABLE orders LIKE before_it")
    insert(orders, 1, 2)
    planned = lanes.logs["interval-a"][0]
    refused = r"microbatch add-source .* orders_2"
    with pytest.raises(SourceError, match=refused):
        lanes.open("interval-a").read(planned.start, planned.end)
    for ask in (lanes.survey, lanes.interval):
        with pytest.raises(SourceError, match=refused):
            ask("interval-b", hours(1, 3))
    assert lanes.interval("interval-c", hours(2, 3)) == [2], "of which nobody had anything"
    with pytest.raises(SourceError, match=refused):
        lanes.live()
    lanes.hold(LIVE, None, lanes.open().initial_offset())  # a command has said that its rows are others
    assert lanes.live() == [1]


def test_a_table_that_was_written_anew_stops_intervals_where_lanes_had_rows(
    lanes_of: Callable[..., Lanes], in_postgres: InPostgres
) -> None:
    lanes = lanes_of(in_postgres)
    insert(in_postgres, 1, 2)
    assert lanes.interval("interval-a", hours(1, 2)) == [1]
    with in_postgres.table.connect(autocommit=True) as session:
        session.execute("VACUUM FULL orders")
    assert lanes.interval("interval-b", hours(1, 2)) == [], "which leaves rows their transactions"
    write_anew(in_postgres.table, "orders")
    with pytest.raises(SourceError, match=r"written anew.*microbatch add-source"):
        lanes.interval("interval-c", hours(1, 2))
    assert lanes.interval("interval-d", hours(2, 3)) == [2]


def test_a_table_with_one_partition_written_anew_stops_intervals_where_lanes_had_rows(
    lanes_of: Callable[..., Lanes], in_postgres: InPostgres
) -> None:
    lanes = lanes_of(in_postgres)
    in_two_partitions(in_postgres.table, range(1, 6), border=4)
    in_postgres.table.execute(f"UPDATE orders SET updated_at = {in_postgres.at(1)}")
    assert lanes.interval("interval-a", hours(1, 2)) == [1, 2, 3, 4, 5]
    write_anew(in_postgres.table, "upper")
    with pytest.raises(SourceError, match=r"written anew.*microbatch add-source"):
        lanes.interval("interval-b", hours(1, 2))


def test_a_live_pipeline_of_numbers_is_not_backfilled(lanes_of: Callable[..., Lanes], in_postgres: InPostgres) -> None:
    lanes = lanes_of(in_postgres, timestamp=None)
    for ask in (lanes.survey, lanes.interval):
        with pytest.raises(IntervalError, match="has no clock"):
            ask("interval-a", hours(1, 2))


def test_an_entry_that_is_torn_is_named(
    lanes_of: Callable[..., Lanes], in_postgres: InPostgres, tmp_path: Path
) -> None:
    lanes, entry = lanes_of(in_postgres), tmp_path / "checkpoint" / "state" / "taken"
    insert(in_postgres, 1)
    entry.parent.mkdir(parents=True)
    for torn in (
        '{"live":',
        "{}",
        '{"live": [], "intervals": [["interval-a", {"t": null}]]}',
        '{"live": [[{"t": null}, {"t": "now()"}]], "intervals": []}',
    ):
        entry.write_text(torn)
        with pytest.raises(CorruptEntryError, match="state/taken"):
            lanes.live()


def test_a_live_batch_is_not_read_where_what_it_left_out_is_not_on_record(
    orders: Orders, lanes: Lanes, tmp_path: Path
) -> None:
    insert(orders, 1, 2)
    lanes.interval("interval-a", hours(1, 2))
    assert lanes.live() == [2]
    (tmp_path / "checkpoint" / "state" / "taken").unlink()
    with pytest.raises(SourceError, match=r"source 'orders': 1 data intervals .* 0 are on record"):
        lanes.again()


@pytest.mark.parametrize("seed", range(2))
def test_lanes_at_once_beside_writers_have_each_row_once(
    orders: Orders, lanes_of: Callable[..., Lanes], seed: int
) -> None:
    lanes, over = (
        lanes_of(orders, **({"late_seconds": 30} if isinstance(orders, InPostgres) else {})),
        threading.Event(),
    )
    began_ms = int(time.time() * 1000) - (25_000 if isinstance(orders, InPostgres) else 0)
    # MariaDB's list of transactions stays an old one where it is looked at without a pause.
    turn = nullcontext() if isinstance(orders, InPostgres) else threading.Lock()

    def write(number: int) -> None:
        chance = random.Random(f"{seed} {number}")
        for _ in range(15):
            with orders.table.connect() as session:
                for _ in range(chance.randint(1, 4)):
                    session.execute("SAVEPOINT before_it")  # of PostgreSQL a transaction with an id of its own
                    session.execute(f"INSERT INTO orders (updated_at) VALUES ({orders.anywhere(chance)})")
                    if chance.random() < 0.2:
                        session.execute("ROLLBACK TO SAVEPOINT before_it")
                over.wait(chance.random() / 50)
                if chance.random() < 0.2:
                    session.execute("ROLLBACK")

    had, errors = dict[str, list[int]](), list[BaseException]()

    def plan(number: int) -> None:
        chance, count = random.Random(f"{seed} plan {number}"), 0
        try:
            while not over.is_set():
                start = chance.randint(began_ms, int(time.time() * 1000))
                interval = Interval(start_ms=start, end_ms=start + chance.randint(1, 8000))
                lane = f"interval-{number}-{count}"
                with turn:
                    had[lane] = lanes.interval(lane, interval)
                count += 1
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    planners = [threading.Thread(target=plan, args=(number,)) for number in range(2)]
    for thread in (*writers, *planners):
        thread.start()
    while any(writer.is_alive() for writer in writers):
        with turn:
            had[f"live {len(had)}"] = lanes.live(ReadLimit(rows=20))
    over.set()
    for planner in planners:
        planner.join()
    assert not errors
    orders.table.execute("INSERT INTO orders (note) VALUES ('the last one')")
    while missing := set(orders.all()) - {id for found in had.values() for id in found}:
        had[f"live {len(had)}"] = found = lanes.live()
        assert found or isinstance(orders, InMariaDb), f"{missing} is in no lane"
    assert Counter(id for found in had.values() for id in found) == Counter(orders.all())
    assert any(found for lane, found in had.items() if lane.startswith("interval"))
    assert any(found for lane, found in had.items() if lane.startswith("live"))
    again = Counter(id for found in lanes.again().values() for id in found)
    assert again == Counter(orders.all())
