"""What lanes took of a table stays taken, and no more than that: what comes between a survey and its plan, positions by
hand, and tables that are other ones by now, on a real PostgreSQL and a real MariaDB."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_provider_microbatch.exceptions import IntervalError
from airflow_provider_microbatch.sources.intervals import Interval
from tests.sources.lanes_of_a_table import InMariaDb, Lanes


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
