"""What lanes take of a table is kept in an entry, and which tables may be planned by intervals, without a database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.jdbc import JdbcSource
from airflow_provider_microbatch.sources.jdbc.moment import Moment
from airflow_provider_microbatch.sources.jdbc.taken import Found, Log, Taken
from airflow_provider_microbatch.stores.posix import PosixStore


def test_a_pipeline_by_intervals_takes_no_table_that_is_read_by_numbers(tmp_path: Path) -> None:
    def pipeline(**options: Any) -> Pipeline:
        return Pipeline(
            "orders",
            checkpoint=str(tmp_path),
            sources={"orders": JdbcSource("orders", "orders_db", **options)},
            sink=FileSink(str(tmp_path / "lake")),
            plan="interval",
        )

    with pytest.raises(
        DefinitionError, match=r"plan='interval'.*source 'orders'.*'id', which tell no time.*timestamp="
    ):
        pipeline()
    pipeline(timestamp="updated_at")


def test_the_entry_keeps_of_a_live_lane_no_more_than_the_last_claim(tmp_path: Path) -> None:
    taken, place = Taken(PosixStore(tmp_path)), Moment()
    for minute in range(9):
        end = Moment(time=f"2026-01-01 00:0{minute}:00+00", key=minute, below=minute, digest="")
        assert taken.claim(taken.find(), place, end, log=Log())
        place = end
    assert not taken.claim(Found(), Moment(), place, log=Log()), "somebody has written since"
    assert [one.end for one in taken.find().live] == [place]
    by_hand = Moment(time="2026-01-01 00:03:00+00")
    assert taken.claim(taken.find(), by_hand, place, log=Log())
    assert [one.after for one in taken.find().live] == [Moment(), by_hand]
