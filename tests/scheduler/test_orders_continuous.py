"""The streaming loop on a real scheduler and a real spark-submit."""

from __future__ import annotations

import os
import signal

import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from tests.scheduler.shop import SECONDS, Shop, order

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

DAG = "orders_continuous"


def test_landed_files_reach_the_table_once_though_a_task_is_killed_in_the_middle(shop: Shop) -> None:
    others = shop.landed("orders")
    shop.land("orders", "a", [order(number) for number in range(10)])
    shop.airflow.unpause(DAG)
    first = shop.wait_for_commit("orders", 0)
    assert first.run is not None
    assert shop.airflow.wait_for_run(DAG, first.run.run_id, timeout=SECONDS) == "success"
    tasks = shop.airflow.task_instances(DAG, first.run.run_id)
    assert tasks["micro_batch"]["rendered_map_index"] == f"batch 0 · {10 + len(others)} rows"
    assert shop.airflow.xcom(DAG, first.run.run_id, "micro_batch")["rows_out"] == 10 + len(others)
    assert shop.airflow.xcom(DAG, first.run.run_id, "new_data") == "new data in orders"
    # It started and ended in the triggerer: no worker ever held it.
    assert tasks["new_data"]["pid"] is None

    shop.land("orders", "b", [order(number) for number in range(10, 15)])
    spark = shop.wait_for_spark("orders", 1)
    task = spark.parent()
    assert task is not None
    shop.land("orders", "c", [order(99)])
    os.kill(task.pid, signal.SIGKILL)
    second = shop.wait_for_commit("orders", 1)
    assert second.epoch == 2
    assert second.rows_out == 5
    end = shop.checkpoint("orders").attempts.ended(BatchKey(LIVE, 1), 1)
    assert end is not None
    assert end.state == "superseded"
    assert not spark.is_running()
    assert second.run is not None
    assert shop.airflow.wait_for_run(DAG, second.run.run_id, timeout=SECONDS) == "success"
    assert shop.airflow.task_instances(DAG, second.run.run_id)["micro_batch"]["try_number"] == 2

    third = shop.wait_for_commit("orders", 2)
    assert third.run is not None
    assert shop.airflow.wait_for_run(DAG, third.run.run_id, timeout=SECONDS) == "success"
    assert shop.ids("orders") == [*range(15), 99, *others]
    assert shop.stages("orders") == []
    shop.airflow.pause(DAG)
