"""Columns that a table is read by and that are others by now, as the database has it: on a real PostgreSQL and a real
MariaDB."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources import ReadLimit
from tests.sources.lanes_of_a_table import InMariaDb, InPostgres, Lanes, Orders, here, hours, insert


def another_key(orders: Orders, how: str) -> str | None:
    """Rename the key column, or drop it, for which InnoDB makes the table again. The key of now."""
    if how == "renamed" or isinstance(orders, InMariaDb):
        orders.table.execute("ALTER TABLE orders RENAME COLUMN id TO number")
        return "number"
    orders.table.execute("ALTER TABLE orders DROP COLUMN id")
    return None


@pytest.mark.parametrize("entry", ["of now", "of an older version"])
@pytest.mark.parametrize("how", ["renamed", "dropped"])
def test_a_key_column_that_told_an_interval_nothing_may_go(
    orders: Orders, lanes_of: Callable[..., Lanes], tmp_path: Path, how: str, entry: str
) -> None:
    before = lanes_of(orders)
    insert(orders, 1)
    assert before.live() == [1]
    insert(orders, 5, 5.5)
    assert before.interval("interval-a", hours(5, 6)) == [2, 3]
    if entry == "of an older version":
        file = tmp_path / "checkpoint" / "state" / "taken"
        values = json.loads(file.read_text())
        [[_, end]] = values["intervals"][0][1]["not"]
        assert end["k"] is None
        end["k"] = 1
        file.write_text(json.dumps(values))
    lanes = lanes_of(orders, column=another_key(orders, how))
    lanes.logs = before.logs
    here(lanes)
    begin = lanes.logs[LIVE][-1].end
    assert not lanes.open().has_new(begin)
    assert lanes.open().latest_offset(begin) == begin
    assert lanes.open().lag(begin).rows == 0
    assert not lanes.survey("interval-b", hours(5, 7)).unread


def test_a_key_column_that_tells_what_an_interval_has_is_named_once_it_is_gone(
    orders: Orders, lanes_of: Callable[..., Lanes]
) -> None:
    before = lanes_of(orders)
    insert(orders, 1, 1)
    assert before.live(ReadLimit(rows=1)) == [1]
    assert before.interval("interval-a", hours(0, 2)) == [2]
    lanes = lanes_of(orders, column=another_key(orders, "renamed"))
    lanes.logs = before.logs
    here(lanes)
    begin = lanes.logs[LIVE][-1].end
    said = r"interval-a.*by column 'id', which .*orders does not have.*RENAME COLUMN.*add-source"
    for ask in (
        lanes.live,
        lambda: lanes.open().has_new(begin),
        lambda: lanes.open().lag(begin),
        lambda: lanes.survey("interval-b", hours(1, 2)),
    ):
        with pytest.raises(SourceError, match=said):
            ask()
    assert not lanes.survey("interval-b", hours(3, 4)).unread, "which has none of its times"
    orders.table.execute("ALTER TABLE orders RENAME COLUMN number TO id")
    insert(orders, 3)
    back = lanes_of(orders)
    back.logs = {LIVE: before.logs[LIVE][:1]}
    assert back.live() == [3]


KEY_SWAPPED = ["ALTER TABLE orders RENAME id TO before", "ALTER TABLE orders RENAME turn TO id"]
TIME_SWAPPED = ["ALTER TABLE orders RENAME updated_at TO before", "ALTER TABLE orders RENAME other_at TO updated_at"]
SWAPPED = {
    "by time": ({}, TIME_SWAPPED),
    "by the key of a time": ({}, KEY_SWAPPED),
    "by number": ({"timestamp": None}, [*KEY_SWAPPED, "ALTER SEQUENCE orders_id_seq OWNED BY orders.id"]),
    "anew": ({}, ["ALTER TABLE orders DROP updated_at", "ALTER TABLE orders ADD updated_at timestamptz DEFAULT now()"]),
}


@pytest.mark.parametrize("case", SWAPPED)
def test_a_position_tells_nothing_of_another_column_that_has_the_name_now(
    in_postgres: InPostgres, lanes_of: Callable[..., Lanes], case: str
) -> None:
    options, changes = SWAPPED[case]
    table = in_postgres.table
    table.execute(
        "ALTER TABLE orders ADD other_at timestamptz DEFAULT '2026-01-01', ADD turn bigint DEFAULT 0 NOT NULL"
    )
    insert(in_postgres, 1, 2, 3)
    table.execute("UPDATE orders SET turn = 10 - id")
    source = lanes_of(in_postgres, **options).open()
    end = source.latest_offset(None, ReadLimit(rows=2))
    for change in changes:
        table.execute(change)
    said = "read by (updated_at, )?id now: other columns have the same name since then.*set-offset"
    for ask in (source.has_new, source.latest_offset, source.lag):
        with pytest.raises(SourceError, match=said):
            ask(end)
    assert "other columns have the same name" in str(source.not_replayable(None, end))
    written = json.loads(end or "")
    assert written["of"].pop() == ([1] if case == "by number" else [3, 1])
    source.lag(json.dumps(written))  # an older version wrote no numbers


def test_lanes_of_intervals_tell_nothing_of_another_column_that_has_the_name_now(
    in_postgres: InPostgres, lanes_of: Callable[..., Lanes]
) -> None:
    lanes, table = lanes_of(in_postgres), in_postgres.table
    table.execute(f"ALTER TABLE orders ADD other_at timestamptz DEFAULT {in_postgres.at(1)}")
    insert(in_postgres, 5, 5)
    assert lanes.interval("interval-a", hours(5, 6)) == [1, 2]
    for change in TIME_SWAPPED:
        table.execute(change)
    [planned] = lanes.logs["interval-a"]
    said = r"by another column of the name updated_at.*add-source"
    for ask in (
        lambda: lanes.interval("interval-b", hours(1, 2)),
        lambda: lanes.survey("interval-b", hours(1, 2)),
        lanes.live,
        lambda: lanes.open("interval-a").read(planned.start, planned.end),
    ):
        with pytest.raises(SourceError, match=said):
            ask()


def test_an_interval_of_another_timestamp_has_nothing_that_lanes_have_read(
    orders: Orders, lanes_of: Callable[..., Lanes]
) -> None:
    kind = "datetime(6)" if isinstance(orders, InMariaDb) else "timestamptz"
    orders.table.execute(f"ALTER TABLE orders ADD COLUMN made_at {kind}")
    before, lanes = lanes_of(orders), lanes_of(orders, timestamp="made_at")
    insert(orders, 5, 5)
    orders.table.execute(f"UPDATE orders SET updated_at = updated_at, made_at = {orders.at(1)}")
    assert before.interval("interval-a", hours(5, 6)) == [1, 2]
    for ask in (lanes.survey, lanes.interval):
        with pytest.raises(SourceError, match=r"by updated_at, and it is read by made_at now.*add-source"):
            ask("interval-b", hours(1, 2))


def test_keys_of_an_interval_are_no_values_of_another_column_that_has_the_name_now(
    in_postgres: InPostgres, lanes_of: Callable[..., Lanes]
) -> None:
    lanes, table = lanes_of(in_postgres), in_postgres.table
    table.execute("ALTER TABLE orders ADD turn bigint DEFAULT 0 NOT NULL")
    insert(in_postgres, 1, 1)
    assert lanes.live(ReadLimit(rows=1)) == [1]
    assert lanes.interval("interval-a", hours(0, 2)) == [2]
    for change in KEY_SWAPPED:
        table.execute(change)
    [planned] = lanes.logs["interval-a"]
    here(lanes)
    for ask in (lanes.live, lambda: lanes.open("interval-a").read(planned.start, planned.end)):
        with pytest.raises(SourceError, match=r"by column 'id', .*another one.*add-source"):
            ask()


@pytest.mark.parametrize("timestamp", [None, "updated_at"])
def test_columns_may_have_any_name(
    in_postgres: InPostgres, lanes_of: Callable[..., Lanes], timestamp: str | None
) -> None:
    table, source = in_postgres.table, lanes_of(in_postgres, timestamp=timestamp).open()
    for name in ("one", "other", "span", "t", "n", "part", "found", "at", "x"):
        table.execute(f"ALTER TABLE orders ADD {name} int NOT NULL DEFAULT -1")
    with table.connect() as slow:
        slow.execute("INSERT INTO orders DEFAULT VALUES")
        table.execute("INSERT INTO orders DEFAULT VALUES")
        first = source.latest_offset(None)
    assert in_postgres.ids(source, None, first) == [2]
    assert source.lag(first).rows == 1
    assert source.has_new(first)
    second = source.latest_offset(first)
    assert in_postgres.ids(source, first, second) == [1]
    assert source.lag(second).rows == 0
