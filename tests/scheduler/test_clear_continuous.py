"""A committed batch is cleared while the next run of the loop waits for data, and no data comes."""

from __future__ import annotations

import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from tests.scheduler.shop import SECONDS, Shop

pytestmark = pytest.mark.airflow

DAG = "loop"


def test_the_run_that_waits_for_data_gives_way_to_a_cleared_one(shop: Shop) -> None:
    shop.land("loop", "a", [{"id": 1}])
    shop.airflow.unpause(DAG)
    first = shop.wait_for_commit("loop", 0).run
    assert first is not None
    assert shop.airflow.wait_for_run(DAG, first.run_id, timeout=SECONDS) == "success"

    def waiting() -> str | None:
        newest = shop.airflow.runs(DAG)[-1]["dag_run_id"]
        states = {name: task["state"] for name, task in shop.airflow.task_instances(DAG, newest).items()}
        return newest if newest != first.run_id and states.get("new_data") == "deferred" else None

    second = shop.airflow.wait_for(waiting, timeout=SECONDS, what="the next run to wait for data")
    shop.airflow.clear(DAG, first.run_id)
    replays = shop.checkpoint("loop").replays
    shop.airflow.wait_for(
        lambda: replays.epochs.ends(BatchKey(LIVE, 0)), timeout=SECONDS, what="the replay of the cleared batch"
    )
    assert shop.airflow.wait_for_run(DAG, first.run_id, timeout=SECONDS) == "success"
    skipped = shop.airflow.task_instances(DAG, second)
    assert {name: task["state"] for name, task in skipped.items()} == {"new_data": "skipped", "micro_batch": "skipped"}
    assert shop.airflow.run_state(DAG, second) == "success"

    shop.land("loop", "b", [{"id": 2}])
    shop.wait_for_commit("loop", 1)
    assert shop.batch("loop", 1).rows_out == 1
    shop.airflow.pause(DAG)
