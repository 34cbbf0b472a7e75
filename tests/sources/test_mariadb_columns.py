"""A table of a real MariaDB that is read by other columns than before, or than the one that it counts."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.jdbc.mariadb import open as by_number
from tests.sources.jdbc_world import check_not_gone_on_from
from tests.support.orders_in_mariadb import orders_in_mariadb

pytestmark = pytest.mark.slow

BY_TIME = {"timestamp": "updated_at"}


@pytest.mark.parametrize(
    ("then", "now", "kept", "where"),
    [
        ({}, {"column": "turn"}, {"n", "gaps"}, "the column was merely renamed"),
        (BY_TIME, {"timestamp": "made_at"}, {"t", "k"}, "the columns were merely renamed"),
        (BY_TIME, {**BY_TIME, "column": "turn"}, {"t"}, "or before was read"),
    ],
    ids=["number", "time", "key"],
)
def test_a_position_by_other_columns_is_not_gone_on_from(
    tmp_path: Path, then: dict[str, Any], now: dict[str, Any], kept: set[str], where: str
) -> None:
    with orders_in_mariadb() as orders:
        opened = partial(orders.opened, tmp_path / "checkpoint")
        orders.execute(
            "ALTER TABLE orders ADD turn int NOT NULL DEFAULT 1, ADD made_at timestamp NOT NULL DEFAULT now()"
        )
        orders.execute("INSERT INTO orders (note, turn) VALUES ('a', 3), ('b', 2), ('c', 1)")
        end = opened(**then).latest_offset(None)
        part = {name: value for name, value in json.loads(end).items() if name in kept}
        check_not_gone_on_from(opened(**now), end, table=r"orders_\d+\.orders", kept=json.dumps(part), where=where)


def test_numbers_of_a_column_beside_the_counter_of_another_are_read_to_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``AUTO_INCREMENT`` counts the rows here, and tells nothing of which numbers the column has yet to get."""
    monkeypatch.setattr(by_number, "MOST_GAPS", 3)
    with orders_in_mariadb() as orders:
        orders.execute("ALTER TABLE orders ADD turn bigint UNIQUE")
        orders.execute("INSERT INTO orders (turn) SELECT 10 * seq FROM seq_1_to_10")
        source, position, read = orders.opened(tmp_path / "checkpoint", column="turn"), None, []
        while (end := source.latest_offset(position)) != position:
            read, position = read + orders.ids(source, position, end), end
        assert read == list(range(1, 11))


def test_a_table_that_begins_again_is_not_told_by_the_counter_of_another_column(tmp_path: Path) -> None:
    with orders_in_mariadb() as orders:
        orders.execute("ALTER TABLE orders ADD turn bigint UNIQUE")
        orders.execute("INSERT INTO orders (turn) VALUES (1), (2), (3)")
        source = orders.opened(tmp_path / "checkpoint", column="turn")
        end = source.latest_offset(None)
        orders.execute("DELETE FROM orders")
        orders.execute("INSERT INTO orders (turn) VALUES (1), (2)")
        with pytest.raises(SourceError, match=r"begins again.* 2, and was read up to 3"):
            source.latest_offset(end)
