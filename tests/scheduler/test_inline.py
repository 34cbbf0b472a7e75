"""``@task.micro_batch``, a transform that fails, and a task that is stopped: on a real scheduler and spark-submit."""

from __future__ import annotations

import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from tests.scheduler.shop import SECONDS, Shop, order

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

DAG = "inline"
KEY = BatchKey(LIVE, 0)


def test_a_failing_transform_is_told_a_stopped_task_publishes_nothing_and_mended_code_goes_on(shop: Shop) -> None:
    attempts = shop.checkpoint(DAG).attempts
    shop.land(DAG, "a", [order(1), order(2), order(3, amount=0.5)])
    (shop.home / "inline_fails").touch()
    shop.airflow.unpause(DAG)
    failed = shop.airflow.trigger(DAG)
    assert shop.airflow.wait_for_run(DAG, failed, timeout=SECONDS) == "failed"
    told = shop.airflow.task_log(DAG, failed, "micro_batch").splitlines()
    lines = [line for line in told if line and not line.startswith("::")]
    assert lines[-1] == "ValueError: no such column: total"
    assert any("in micro_batch" in line for line in lines[-6:])
    assert shop.airflow.task_instances(DAG, failed)["micro_batch"]["rendered_map_index"] == "batch 0"

    (shop.home / "inline_fails").unlink()
    (shop.home / "inline_waits").touch()
    stopped = shop.airflow.trigger(DAG)
    shop.airflow.wait_for(lambda: attempts.latest_epoch(KEY) == 2, timeout=SECONDS, what="attempt 2")
    spark = shop.wait_for_spark(DAG, 0)
    path = f"dags/{DAG}/dagRuns/{stopped}/taskInstances/micro_batch"
    shop.airflow.api("PATCH", path, {"new_state": "failed"})
    shop.airflow.wait_for(
        lambda: attempts.ended(KEY, 2) is not None and not spark.is_running(), timeout=SECONDS, what="Spark's end"
    )
    end = attempts.ended(KEY, 2)
    assert end is not None
    assert end.state == "canceled"
    assert shop.ids(DAG) == []
    assert shop.stages(DAG) == []

    (shop.home / "inline_waits").unlink()
    mended = shop.airflow.trigger(DAG)
    assert shop.airflow.wait_for_run(DAG, mended, timeout=SECONDS) == "success"
    assert shop.ids(DAG) == [1, 2]
    assert shop.batch(DAG, 0).epoch == 3
    shop.airflow.pause(DAG)
