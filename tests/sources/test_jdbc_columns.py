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
from tests.sources.lanes_of_a_table import InMariaDb, Lanes, Orders, here, hours, insert


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
