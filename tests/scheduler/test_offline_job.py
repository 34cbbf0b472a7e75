"""Jobs whose sources end, on a real scheduler."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from tests.scheduler.shop import SECONDS, Shop

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]


def ids(shop: Shop, table: str) -> list[int]:
    found = (shop.home / "lake" / table / "lane=live").glob("batch_id=*/part-*")
    return sorted(json.loads(line)["id"] for part in found for line in part.read_text().splitlines())


def land(shop: Shop, job: str) -> None:
    """Three files of orders, two of people."""
    for number in range(3):
        shop.land(f"{job}_orders", f"{number}", [{"id": number}])
    for number, name in enumerate(("users", "guests")):
        shop.land(f"{job}_{name}", f"{number}", [{"id": number}])


def states(shop: Shop, dag: str, run_id: str) -> dict[str, str]:
    return {name: task["state"] for name, task in shop.airflow.task_instances(dag, run_id).items()}


def test_a_job_whose_pipelines_are_all_complete_pauses_its_dag(shop: Shop) -> None:
    land(shop, "offline")
    shop.airflow.unpause("offline")
    shop.airflow.wait_for(
        lambda: shop.airflow.api("GET", "dags/offline")["is_paused"], timeout=SECONDS, what="the pause of the DAG"
    )
    assert (ids(shop, "offline_orders"), ids(shop, "offline_people")) == ([0, 1, 2], [0, 1])
    runs = shop.airflow.runs("offline")
    assert [run["state"] for run in runs] == ["success"] * 4
    assert states(shop, "offline", runs[-1]["dag_run_id"]) == {
        "offline.new_data": "skipped",
        "offline.orders.micro_batch": "skipped",
        "offline.people.micro_batch": "skipped",
    }
    # People were done after the first batch, and said so beside the orders that went on.
    third = shop.airflow.task_instances("offline", runs[2]["dag_run_id"])["offline.people.micro_batch"]
    assert (third["state"], third["rendered_map_index"]) == ("skipped", "complete")
    last = shop.batch("offline/orders", 2)
    assert (last.complete, shop.batch("offline/orders", 1).complete) == (True, False)

    # The same over again: who unpauses it has one more run, which finds what is on record.
    shop.land("offline_orders", "late", [{"id": 9}])
    shop.airflow.unpause("offline")
    shop.airflow.wait_for(
        lambda: shop.airflow.api("GET", "dags/offline")["is_paused"], timeout=SECONDS, what="the second pause"
    )
    assert len(shop.airflow.runs("offline")) == 5
    assert ids(shop, "offline_orders") == [0, 1, 2]


def test_a_dag_that_runs_all_the_time_does_not_spin_on_a_job_that_is_complete(shop: Shop) -> None:
    land(shop, "offline_stays")
    shop.airflow.unpause("offline_stays")
    shop.wait_for_commit("offline_stays/orders", 2)

    def runs() -> list[dict[str, Any]]:
        return shop.airflow.runs("offline_stays")

    def looks_on() -> bool:
        """The fourth run's sensor has been rescheduled, so it has looked and found it complete."""
        if len(runs()) < 4:
            return False
        found = shop.airflow.task_instances("offline_stays", runs()[-1]["dag_run_id"])
        return found["offline_stays.new_data"]["state"] == "up_for_reschedule"

    shop.airflow.wait_for(looks_on, timeout=SECONDS, what="a sensor that stays")
    # It starts anew now and then, and stays.
    shop.airflow.wait_for(lambda: not looks_on(), timeout=SECONDS, what="the sensor's next look")
    shop.airflow.wait_for(looks_on, timeout=SECONDS, what="the sensor that stays on")
    assert [run["state"] for run in runs()] == ["success"] * 3 + ["running"]
    shop.airflow.pause("offline_stays")


def test_a_finished_source_beside_one_that_goes_on_is_not_looked_at_any_more(shop: Shop) -> None:
    shop.land("offline_beside_past", "0", [{"id": 0}])
    shop.land("offline_beside_new", "1", [{"id": 1}])
    shop.airflow.unpause("offline_beside")
    shop.wait_for_commit("offline_beside/orders", 0)
    # Where it was read from is gone; whoever listed it or opened a file of it would fail.
    shutil.rmtree(shop.home / "landing" / "offline_beside_past")
    for number in (1, 2):
        shop.land("offline_beside_new", f"{number + 1}", [{"id": number + 1}])
        summary = shop.wait_for_commit("offline_beside/orders", number)
        assert summary.read["past"]["files"] == 0
        assert not summary.complete
    assert ids(shop, "offline_beside") == [0, 1, 2, 3]
    assert not shop.airflow.api("GET", "dags/offline_beside")["is_paused"]
    shop.airflow.pause("offline_beside")
