"""Hooks of a job, on a real scheduler: each run is told once, whoever dies."""

from __future__ import annotations

import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from tests.graph.run_hooks import told
from tests.scheduler.shop import SECONDS, Shop
from tests.support.leases import expire_leases

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

DAG = "hooked"


def told_of(shop: Shop, run_id: str) -> list[str]:
    return told(shop.home / "hooked_diary", run_id)


def begin(shop: Shop, number: int) -> str:
    """A run with data for both pipelines."""
    for name in ("orders", "people"):
        shop.land(f"hooked_{name}", f"{number}", [{"id": number}])
    return shop.airflow.trigger(DAG)


def wait_for_end(shop: Shop, run_id: str) -> list[str]:
    shop.airflow.wait_for(lambda: len(told_of(shop, run_id)) > 1, timeout=SECONDS, what=f"the end of run {run_id}")
    return told_of(shop, run_id)


def test_a_run_is_created_once_and_ends_once_whatever_becomes_of_its_pipelines(shop: Shop) -> None:
    shop.airflow.unpause(DAG)
    orders = shop.home / "hooked_orders"

    # FINISHED comes after the last commit: orders wait while people are done. And the scheduler is killed meanwhile.
    orders.write_text("wait")
    run_id = begin(shop, 0)
    shop.wait_for_commit("hooked/people", 0)
    assert told_of(shop, run_id) == ["created"]
    shop.airflow.kill_component("scheduler")
    shop.airflow.start_component("scheduler")
    orders.unlink()
    assert shop.airflow.wait_for_run(DAG, run_id, timeout=SECONDS) == "success"
    assert wait_for_end(shop, run_id) == ["created", "finished"]

    # A task that is killed leaves the run red, and the job FAILED; what tells of it makes no run green.
    orders.write_text("die")
    run_id = begin(shop, 1)
    assert shop.airflow.wait_for_run(DAG, run_id, timeout=SECONDS) == "failed"
    assert wait_for_end(shop, run_id) == ["created", "failed failed: hooked.orders.micro_batch"]
    assert shop.airflow.task_instances(DAG, run_id)["hooked.job_status"]["state"] == "success"

    # Who marks the run cancels it; the batch that was planned is orders' still.
    expire_leases(shop.home / "checkpoints" / "hooked" / "orders")  # or its run is taken for alive at the batch
    orders.write_text("wait")
    run_id = begin(shop, 2)
    shop.wait_for_commit("hooked/people", 2)
    attempts, key = shop.checkpoint("hooked/orders").attempts, BatchKey(LIVE, 1)

    def is_at_it() -> bool:
        newest = attempts.latest(key)
        return newest is not None and newest.run is not None and newest.run.run_id == run_id

    shop.airflow.wait_for(is_at_it, timeout=SECONDS, what="the attempt of orders")
    path = f"dags/{DAG}/dagRuns/{run_id}"
    shop.airflow.api("PATCH", path, {"state": "failed"})
    assert wait_for_end(shop, run_id) == ["created", "canceled"]
    orders.unlink()
    run_id = begin(shop, 3)
    assert shop.airflow.wait_for_run(DAG, run_id, timeout=SECONDS) == "success"
    assert wait_for_end(shop, run_id) == ["created", "finished"]
    lines = (shop.home / "hooked_diary").read_text().splitlines()
    assert sorted(line.split()[0] for line in lines) == ["canceled"] + ["created"] * 4 + ["failed"] + ["finished"] * 2
    shop.airflow.pause(DAG)
