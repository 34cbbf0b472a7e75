"""Plan, submit, an audit that refuses, commit: on a real scheduler and a real spark-submit."""

from __future__ import annotations

import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from tests.scheduler.shop import SECONDS, Shop, order

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

DAG = "orders_steps"
KEY = BatchKey(LIVE, 0)


def states(shop: Shop, run_id: str) -> dict[str, str]:
    tasks = shop.airflow.task_instances(DAG, run_id)
    return {task_id.removeprefix("micro_batch."): task["state"] for task_id, task in tasks.items()}


def test_an_audit_refuses_the_next_run_takes_the_batch_up_and_clears_mean_what_they_say(shop: Shop) -> None:
    shop.land(DAG, "a", [order(1), order(2, amount=-1)])
    shop.airflow.unpause(DAG)
    shop.airflow.wait_for(
        lambda: [run for run in shop.airflow.runs(DAG) if run["state"] == "failed"],
        timeout=SECONDS,
        what="the audit's refusal",
    )
    (refused,) = [run["dag_run_id"] for run in shop.airflow.runs(DAG)]
    assert states(shop, refused) == {
        "plan": "success",
        "submit": "success",
        "no_negative_amounts": "failed",
        "commit": "upstream_failed",
    }
    assert "orders [2] have negative amounts" in shop.airflow.task_log(DAG, refused, "micro_batch.no_negative_amounts")
    assert shop.ids(DAG) == []
    assert shop.stages(DAG) == [(KEY, 1)]

    shop.land(DAG, "b", [order(3)])
    (shop.home / "accept_negative_amounts").touch()
    taken_up = shop.airflow.trigger(DAG)
    assert shop.airflow.wait_for_run(DAG, taken_up, timeout=SECONDS) == "success"
    batch = shop.batch(DAG, 0)
    assert (batch.state, batch.epoch) == ("committed", 2)
    assert shop.ids(DAG) == [1, 2]
    assert shop.stages(DAG) == []
    labels = {
        task_id: task["rendered_map_index"] for task_id, task in shop.airflow.task_instances(DAG, taken_up).items()
    }
    assert labels["micro_batch.submit"] == "batch 0 · attempt 2"
    assert labels["micro_batch.commit"] == "batch 0 · 2 rows"

    shop.airflow.clear(DAG, taken_up, "micro_batch.commit")
    assert shop.airflow.wait_for_run(DAG, taken_up, timeout=SECONDS) == "success"
    assert shop.batch(DAG, 0) == batch
    assert shop.checkpoint(DAG).attempts.latest_epoch(KEY) == 2

    again = [f"micro_batch.{name}" for name in ("submit", "no_negative_amounts", "commit")]
    shop.airflow.clear(DAG, taken_up, *again)
    assert shop.airflow.wait_for_run(DAG, taken_up, timeout=SECONDS) == "success"
    assert shop.checkpoint(DAG).attempts.latest_epoch(KEY) == 3
    assert shop.ids(DAG) == [1, 2]
    assert shop.stages(DAG) == []

    third = shop.airflow.trigger(DAG)
    assert shop.airflow.wait_for_run(DAG, third, timeout=SECONDS) == "success"
    assert shop.batch(DAG, 1).state == "committed"
    assert shop.ids(DAG) == [1, 2, 3]
    assert shop.stages(DAG) == []
    shop.airflow.pause(DAG)
