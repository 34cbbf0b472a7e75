"""A backlog in one DAG run: a mapped task run for each batch, in order, on a real scheduler."""

from __future__ import annotations

import json

import pytest

from tests.scheduler.shop import SECONDS, Shop, order

pytestmark = pytest.mark.airflow

DAG = "drain"


def squares(shop: Shop, run_id: str) -> list[tuple[str, str | None]]:
    """State and label of each slot, in order."""
    path = f"dags/{DAG}/dagRuns/{run_id}/taskInstances"
    found = shop.airflow.api("GET", path)["task_instances"]
    return [(ti["state"], ti["rendered_map_index"]) for ti in sorted(found, key=lambda ti: ti["map_index"])]


def ids(shop: Shop) -> dict[int, list[int]]:
    lake = shop.home / "lake" / DAG / "lane=live"
    return {
        int(folder.name.partition("=")[2]): [
            json.loads(line)["id"] for part in folder.glob("part-*") for line in part.read_text().splitlines()
        ]
        for folder in lake.glob("batch_id=*")
    }


def test_each_slot_takes_the_next_batch_and_a_failure_stops_those_behind_it(shop: Shop) -> None:
    for number in range(5):
        shop.land(DAG, f"{number}", [order(number)])
    (shop.home / "drain_fails").write_text("2")
    shop.airflow.unpause(DAG)
    failed = shop.airflow.trigger(DAG)
    assert shop.airflow.wait_for_run(DAG, failed, timeout=SECONDS) == "failed"
    states = [state for state, _ in squares(shop, failed)]
    assert states == ["success", "success", "failed", "skipped"]
    assert [label for _, label in squares(shop, failed)[:3]] == ["batch 0 · 1 row", "batch 1 · 1 row", "batch 2"]
    assert ids(shop) == {0: [0], 1: [1]}

    (shop.home / "drain_fails").unlink()
    rest = shop.airflow.trigger(DAG)
    assert shop.airflow.wait_for_run(DAG, rest, timeout=SECONDS) == "success"
    states = [state for state, _ in squares(shop, rest)]
    assert states == ["success", "success", "success", "skipped"]
    assert ids(shop) == {number: [number] for number in range(5)}
    shop.airflow.pause(DAG)
