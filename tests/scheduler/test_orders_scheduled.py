"""A batch a period, on a real scheduler and a real spark-submit."""

from __future__ import annotations

import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from tests.scheduler.shop import SECONDS, Shop, order

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

DAG = "orders_scheduled"


def test_the_period_makes_a_batch_an_idle_run_is_a_skip_and_a_clear_is_a_replay(shop: Shop) -> None:
    shop.land("orders", "scheduled", [order(number) for number in range(1000, 1007)])
    landed = len(shop.landed("orders"))
    shop.airflow.unpause(DAG)
    batch = shop.wait_for_commit(DAG, 0)
    assert batch.run is not None
    run_id = batch.run.run_id
    assert run_id.startswith("scheduled__")
    assert shop.airflow.wait_for_run(DAG, run_id, timeout=SECONDS) == "success"
    told = shop.airflow.task_log(DAG, run_id, "micro_batch")
    assert "Completed batch [0]" in told
    # An attempt looks for its fence mark when it begins and every few seconds from then on, and finds none.
    assert not [line for line in told.splitlines() if "Exception" in line or "Traceback" in line or "\tat " in line]
    ids = shop.ids(DAG)
    assert len(ids) == len(set(ids)) == landed
    assert [path.name for path in (shop.home / "lake" / DAG / "lane=live" / "batch_id=0").glob("day=*")] == [
        "day=2026-01-01"
    ]

    idle = shop.airflow.trigger(DAG)
    assert shop.airflow.wait_for_run(DAG, idle, timeout=SECONDS) == "success"
    assert shop.airflow.task_instances(DAG, idle)["micro_batch"]["state"] == "skipped"
    assert shop.checkpoint(DAG).offset_log.latest_id() == 0

    shop.airflow.clear(DAG, run_id)
    assert shop.airflow.wait_for_run(DAG, run_id, timeout=SECONDS) == "success"
    assert shop.airflow.xcom(DAG, run_id, "micro_batch")["key"] == "live/0"
    manifest = shop.home / "lake" / DAG / "lane=live" / "batch_id=0" / "_manifest"
    assert '"epoch": 2' in "".join(path.read_text() for path in manifest.glob("part-*.txt"))
    assert shop.ids(DAG) == ids

    # Such a clear leaves the run's clear number, and starts nothing by itself.
    shop.airflow.clear(DAG, run_id, reset_dag_runs=False)
    shop.airflow.api("PATCH", f"dags/{DAG}/dagRuns/{run_id}", {"state": "queued"})
    shop.airflow.wait_for(
        lambda: shop.airflow.task_instances(DAG, run_id)["micro_batch"]["state"] == "success",
        timeout=SECONDS,
        what="the try after a clear without a clear number",
    )
    assert shop.checkpoint(DAG).replays.epochs.ends(BatchKey(LIVE, 0)) == [1, 2]
    attempts = shop.checkpoint(DAG).attempts.all(BatchKey(LIVE, 0))
    assert [attempt.run.clear_number for attempt in attempts if attempt.run] == [0, 1, 1]
    assert shop.ids(DAG) == ids

    shop.land("orders", "third", [order(number) for number in range(1007, 1009)])
    third = shop.airflow.trigger(DAG)
    assert shop.airflow.wait_for_run(DAG, third, timeout=SECONDS) == "success"
    assert shop.batch(DAG, 1).state == "committed"
    assert shop.ids(DAG) == sorted([*ids, 1007, 1008])
    shop.airflow.pause(DAG)
