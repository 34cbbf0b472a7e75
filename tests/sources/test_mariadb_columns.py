"""A table of a real MariaDB that is read by other columns than before."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

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
