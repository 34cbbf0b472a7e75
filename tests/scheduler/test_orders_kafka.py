"""``dags/orders_kafka.py`` on a real scheduler and a real broker; a clear of what is in is refused."""

from __future__ import annotations

import json

import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from tests.scheduler.shop import SECONDS, Shop, order
from tests.support import kafka
from tests.support.kafka_stages import settled

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

DAG = "orders_kafka"


def test_each_run_is_one_transaction_and_a_clear_is_refused_before_spark_begins(shop: Shop) -> None:
    topic = kafka.running().topic(name="orders", partitions=2)
    shop.connect("kafka", "kafka", extra={"bootstrap.servers": kafka.running().address})
    shop.airflow.unpause(DAG)
    try:
        for number in range(3):
            shop.land(DAG, f"{number}", [order(2 * number), order(2 * number + 1)])
            run = shop.airflow.trigger(DAG)
            assert shop.airflow.wait_for_run(DAG, run, timeout=SECONDS) == "success"
        found = {(json.loads(one.value or b"")["id"], one.headers["microbatch-batch"]) for one in settled(topic)}
        assert found == {(0, "live/0"), (1, "live/0"), (2, "live/1"), (3, "live/1"), (4, "live/2"), (5, "live/2")}
        before = len(settled(topic))
        shop.airflow.clear(DAG, run, "micro_batch")
        shop.airflow.wait_for(
            lambda: shop.airflow.task_instances(DAG, run)["micro_batch"]["state"] == "up_for_retry",
            timeout=SECONDS,
            what="the refusal",
        )
        assert "cannot take back records" in shop.airflow.task_log(DAG, run, "micro_batch", try_number=2)
        assert shop.checkpoint(DAG).attempts.latest_epoch(BatchKey(LIVE, 2)) == 1
        assert len(settled(topic)) == before
    finally:
        shop.airflow.pause(DAG)
