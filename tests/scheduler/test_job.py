"""Jobs on a real scheduler: three pipelines of which one fails all the time, ten batches of each other one; and tables
that come while the job runs."""

from __future__ import annotations

import json
import os
from collections import Counter

import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from tests.scheduler.shop import SECONDS, Shop

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

DAG = "job"
BATCHES = 10


def ids(shop: Shop, table: str) -> list[int]:
    found = (shop.home / "lake" / f"job_{table}" / "lane=live").glob("batch_id=*/part-*")
    return sorted(json.loads(line)["id"] for part in found for line in part.read_text().splitlines())


def test_a_pipeline_that_fails_leaves_the_others_tables_fresh_and_the_run_red(shop: Shop) -> None:
    (shop.home / "job_fails").touch()
    for name in ("job_orders", "job_broken", "job_users", "job_guests"):
        shop.land(name, "0", [{"id": 0}])
    shop.airflow.unpause(DAG)
    for number in range(BATCHES):
        for name in ("orders", "people"):
            shop.wait_for_commit(f"job/{name}", number)
        if number + 1 < BATCHES:
            for name in ("job_orders", "job_users", "job_guests"):
                shop.land(name, f"{number + 1}", [{"id": number + 1}])
    assert ids(shop, "orders") == list(range(BATCHES))
    assert Counter(ids(shop, "people")) == dict.fromkeys(range(BATCHES), 2)
    assert ids(shop, "broken") == []
    # Every square that made a batch is green beside the red one.
    batch = shop.batch("job/orders", BATCHES - 1)
    assert batch.run is not None
    assert shop.airflow.wait_for_run(DAG, batch.run.run_id, timeout=SECONDS) == "failed"
    states = {name: task["state"] for name, task in shop.airflow.task_instances(DAG, batch.run.run_id).items()}
    assert (states["job.orders.micro_batch"], states["job.broken.micro_batch"]) == ("success", "failed")
    # It was left alone between its tries, and did not fail once in each run.
    tries = len(shop.checkpoint("job/broken").attempts.all(shop.batch("job/broken", 0).key))
    assert 1 <= tries < BATCHES

    (shop.home / "job_fails").unlink()
    shop.wait_for_commit("job/broken", 0)
    assert ids(shop, "broken") == [0]
    shop.airflow.pause(DAG)


def test_tables_have_their_turn_and_one_that_comes_is_found(shop: Shop) -> None:
    for table in ("a", "b", "c"):
        for number in range(2):
            shop.land(f"tables/{table}", f"{number}", [{"id": number}])
    shop.airflow.unpause("tables")

    def run() -> dict[str, str]:
        """States by label."""
        run_id = shop.airflow.trigger("tables")
        shop.airflow.wait_for_run("tables", run_id, timeout=SECONDS)
        path = f"dags/tables/dagRuns/{run_id}/taskInstances"
        found = shop.airflow.api("GET", path)["task_instances"]
        return {ti["rendered_map_index"]: ti["state"] for ti in found if ti["task_id"] == "tables.micro_batch"}

    assert run() == {"a · batch 0 · 1 row": "success", "b · batch 0 · 1 row": "success"}
    shop.land("tables/d", "0", [{"id": 0}])
    # None of them has had a batch yet.
    assert run() == {"c · batch 0 · 1 row": "success", "d · batch 0 · 1 row": "success"}
    # These have been without one for longest.
    assert run() == {"a · batch 1 · 1 row": "success", "b · batch 1 · 1 row": "success"}
    assert run() == {"c · batch 1 · 1 row": "success"}
    for table, rows in {"a": 2, "b": 2, "c": 2, "d": 1}.items():
        found = (shop.home / "lake" / "tables" / table / "lane=live").glob("batch_id=*/part-*")
        assert sum(len(part.read_text().splitlines()) for part in found) == rows

    # A clear of the first run makes its tables again, which its new list has in another order, and no other.
    for commit in (shop.home / "checkpoints" / "tables" / "b" / "commits").iterdir():
        os.utime(commit, (0, 0))
    for table in ("c", "d"):
        shop.land(f"tables/{table}", "9", [{"id": 9}])
    first = shop.batch("tables/a", 0).run
    assert first is not None
    shop.airflow.clear("tables", first.run_id)
    for table in ("a", "b"):
        ends = shop.checkpoint(f"tables/{table}").replays.epochs.ends
        shop.airflow.wait_for(
            lambda ends=ends: ends(BatchKey(LIVE, 0)), timeout=SECONDS, what=f"the replay of table {table}"
        )
    shop.airflow.wait_for_run("tables", first.run_id, timeout=SECONDS)
    assert shop.checkpoint("tables/c").commit_log.latest_id() == 1
    shop.airflow.pause("tables")
