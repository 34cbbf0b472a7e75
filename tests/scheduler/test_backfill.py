"""Airflow's own backfill, by REST and on the command line, on a real scheduler: each landed row is in the table once.

The days are those before today, and today began twelve hours ago, so that no run of the schedule gets between.
"""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from typing import Any

import pyarrow.dataset as ds
import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from tests.scheduler.shop import SECONDS, TODAY, Shop

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


def day(number: int) -> datetime:
    """So many days before today."""
    return TODAY - timedelta(days=number)


def lane(number: int) -> str:
    """The lane of the whole day."""
    return f"interval-{day(number):%Y%m%dT%H%M%SZ}-{day(number - 1):%Y%m%dT%H%M%SZ}"


class Backfills:
    """One DAG, its landing folder and its table."""

    def __init__(self, shop: Shop, dag: str) -> None:
        self.shop, self.dag, self.airflow = shop, dag, shop.airflow
        self.checkpoint = shop.checkpoint(dag)

    def land(self, number: int, when: datetime) -> None:
        """One order in one file that was last changed then."""
        folder = self.shop.home / "landing" / self.dag
        folder.mkdir(parents=True, exist_ok=True)
        hidden = folder / f".{number}.json"
        hidden.write_text(json.dumps({"id": number}))
        os.utime(hidden, (when.timestamp(), when.timestamp()))
        hidden.rename(folder / f"{number}.json")

    def start(self) -> str:
        """Unpause; the schedule makes one run at once. Returns its id when it has ended."""
        self.airflow.unpause(self.dag)
        runs = self.airflow.wait_for(lambda: self.airflow.runs(self.dag), timeout=SECONDS, what="a scheduled run")
        run_id = str(runs[0]["dag_run_id"])
        assert self.airflow.wait_for_run(self.dag, run_id, timeout=SECONDS) == "success"
        return run_id

    def create(self, first: int, last: int, **options: Any) -> int:
        """A backfill of the days from ``first`` to ``last`` days ago, by REST."""
        body = {
            "dag_id": self.dag,
            "from_date": day(first).isoformat(),
            "to_date": day(last).isoformat(),
            "max_active_runs": 3,
            **options,
        }
        return int(self.airflow.api("POST", "backfills", body)["id"])

    def wait(self, backfill: int) -> dict[str, str]:
        """States of the DAG's runs when the backfill is over."""
        path = f"backfills/{backfill}"
        self.airflow.wait_for(
            lambda: (
                self.airflow.api("GET", path)["completed_at"] is not None
                and all(run["state"] in ("success", "failed") for run in self.airflow.runs(self.dag))
            ),
            timeout=SECONDS,
            what=f"the end of backfill {backfill} of {self.dag}",
        )
        return {run["dag_run_id"]: run["state"] for run in self.airflow.runs(self.dag)}

    def run_of(self, number: int) -> str:
        """The run of a day."""
        runs = self.airflow.runs(self.dag)
        return str(
            next(run["dag_run_id"] for run in runs if (run["logical_date"] or "").startswith(f"{day(number):%F}"))
        )

    def rows(self) -> dict[str, list[int]]:
        """Ids in the table, sorted, by lane."""
        table = ds.dataset(self.shop.home / "lake" / self.dag, format=self.format, partitioning="hive").to_table()
        found: dict[str, list[int]] = {}
        for row in table.to_pylist():
            found.setdefault(row["lane"], []).append(row["id"])
        return {name: sorted(ids) for name, ids in found.items()}

    @property
    def format(self) -> str:
        return "parquet" if self.dag.endswith("spark") else "json"

    def epochs(self) -> dict[str, int]:
        """How many attempts the first batch of each lane has had."""
        lanes = self.checkpoint.lanes()
        return {name: self.checkpoint.attempts.latest_epoch(BatchKey(name, 0)) for name in lanes}

    def live_ids(self) -> list[int]:
        """Batches of the live lane."""
        return self.checkpoint.offset_log.ids()


def test_an_interval_timetable(shop: Shop) -> None:
    days = Backfills(shop, "backfill_days")
    days.land(1, day(6) + timedelta(hours=3))
    scheduled = days.start()
    assert days.rows() == {LIVE: [1]}

    # None: three missing days at once, newest first, while a live run reads what lands today.
    for number in (4, 3, 2):
        days.land(10 + number, day(number) + timedelta(hours=5))
    waits = shop.home / "backfill_days_waits"
    waits.touch()
    backfill = days.create(4, 2, run_backwards=True, reprocess_behavior="none")
    running = {LIVE: 1, lane(4): 1, lane(3): 1, lane(2): 1}
    shop.airflow.wait_for(lambda: days.epochs() == running, timeout=SECONDS, what="three lanes at once")
    assert days.live_ids() == [0]
    days.land(2, TODAY)
    beside = shop.airflow.trigger(days.dag)
    assert shop.airflow.wait_for_run(days.dag, beside, timeout=SECONDS) == "success"
    assert days.rows() == {LIVE: [1, 2]}
    waits.unlink()
    assert set(days.wait(backfill).values()) == {"success"}
    filled = {LIVE: [1, 2], lane(4): [14], lane(3): [13], lane(2): [12]}
    assert days.rows() == filled
    assert days.live_ids() == [0, 1]

    # What a live batch has read: the run is skipped, and says which batch.
    days.wait(days.create(6, 6, reprocess_behavior="none"))
    covered = days.run_of(6)
    assert shop.airflow.task_instances(days.dag, covered)["micro_batch"]["state"] == "skipped"
    told = shop.airflow.api("GET", f"dags/{days.dag}/dagRuns/{covered}/taskInstances/micro_batch/logs/1")["content"]
    assert "batch live/0 read it" in str(next(line["reason"] for line in told if line["event"] == "Skipping task."))

    # Failed: the run goes on with the batch that it had planned.
    days.land(15, day(5) + timedelta(hours=1))
    (shop.home / "backfill_days_fails").touch()
    assert "failed" in days.wait(days.create(5, 5, reprocess_behavior="none")).values()
    days.land(16, day(5) + timedelta(hours=2))
    (shop.home / "backfill_days_fails").unlink()
    assert set(days.wait(days.create(5, 5, reprocess_behavior="failed")).values()) == {"success"}
    filled[lane(5)] = [15]
    assert days.rows() == filled

    # Completed: each run replays what it had planned, the scheduled one its live batch.
    before = set(days.wait(days.create(5, 1, reprocess_behavior="completed")))
    assert scheduled in before
    assert days.epochs() == {LIVE: 2, lane(2): 2, lane(3): 2, lane(4): 2, lane(5): 3}
    assert days.rows() == filled
    assert days.live_ids() == [0, 1]
    shop.airflow.pause(days.dag)


def test_a_partitioned_timetable(shop: Shop) -> None:
    parts = Backfills(shop, "backfill_partitions")
    parts.land(1, day(6))
    parts.start()
    for number in (3, 2, 1):
        parts.land(10 + number, day(number) + timedelta(hours=23))
    parts.wait(parts.create(3, 1, reprocess_behavior="none", run_backwards=True))
    filled = {LIVE: [1], lane(3): [13], lane(2): [12], lane(1): [11]}
    assert parts.rows() == filled
    runs = len(shop.airflow.runs(parts.dag))

    states = parts.wait(parts.create(3, 0, reprocess_behavior="completed"))
    assert set(states.values()) == {"success"}
    assert len(states) == runs + 4
    assert parts.epochs() == {LIVE: 2, lane(3): 2, lane(2): 2, lane(1): 2}
    assert parts.rows() == filled
    assert parts.live_ids() == [0]
    shop.airflow.pause(parts.dag)


def test_an_interval_pipeline_on_spark_by_the_command_line(shop: Shop) -> None:
    spark = Backfills(shop, "backfill_spark")
    for number in (4, 3, 2):
        spark.land(number, day(number) + timedelta(hours=12))
    spark.airflow.unpause(spark.dag)
    tick = day(2).isoformat()
    dates = ("--from-date", tick, "--to-date", tick)
    shop.airflow.command("backfill", "create", "--dag-id", spark.dag, *dates, "--max-active-runs", "3")
    log = spark.checkpoint.lane(lane(3)).commit_log
    shop.airflow.wait_for(lambda: log.get(0) is not None, timeout=SECONDS, what="the commit of the day before")
    assert spark.rows() == {lane(3): [3]}
    assert spark.live_ids() == []
    shop.airflow.pause(spark.dag)
