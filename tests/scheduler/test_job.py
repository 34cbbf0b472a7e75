"""Three pipelines of one job on a real scheduler, of which one fails all the time; ten batches of each other one."""

from __future__ import annotations

import json
from collections import Counter

import pytest

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
