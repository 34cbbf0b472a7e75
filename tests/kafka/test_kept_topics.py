"""A topic that pipelines go on with: what they look for in it before a batch is made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.kafka import KafkaSink
from airflow_provider_microbatch.sinks.several import Sinks
from tests.execution.world import World
from tests.support import kafka
from tests.support.kafka_stages import settled

pytestmark = pytest.mark.slow


@pytest.fixture(params=["conn_id", "bootstrap_servers"])
def reached(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """By what the brokers are named."""
    monkeypatch.setattr(connections, "_found_by", [kafka.connection])
    return {request.param: "kafka" if request.param == "conn_id" else kafka.running().address}


def sink(folder: Path, topic: str, **given: Any) -> KafkaSink:
    return KafkaSink(topic, stages=str(folder / "stages"), **given)


def rows(topic: str) -> list[int]:
    return sorted(json.loads(one.value or b"")["id"] for one in settled(topic))


def test_a_topic_that_was_made_anew_gets_nothing_on_top(tmp_path: Path, reached: dict[str, str]) -> None:
    topic = kafka.running().topic(partitions=2)
    world = World(tmp_path, sink=sink(tmp_path, topic, **reached))
    for number in range(3):
        world.land(number)
        world.run(number)
    for name in (topic, f"{topic}-microbatch"):
        kafka.running().remove(name)
    kafka.running().topic(name=topic, partitions=2)
    world.land(3)
    with pytest.raises(SinkError, match=r"batch live/2 is committed, and .* does not know it"):
        world.run(3)
    assert rows(topic) == []


def test_a_batch_that_is_in_another_topic_is_not_made_again(tmp_path: Path, reached: dict[str, str]) -> None:
    before, now = (kafka.running().topic(partitions=2) for _ in range(2))
    world = World(tmp_path, sink=sink(tmp_path, before, **reached))
    world.land(1)
    world.execution.publish(world.staged())
    world.expire_leases()
    world.options["sink"] = sink(tmp_path, now, **reached)
    with pytest.raises(SinkError, match=rf"batch live/0 was published to .*{before}, and is there"):
        world.run(1)
    assert (rows(before), rows(now)) == ([1], [])


def test_two_sinks_of_one_topic_are_refused_whatever_connections_lead_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_found_by", [kafka.connection])
    topic = kafka.running().topic(partitions=2)
    both = {name: sink(tmp_path, topic, conn_id=name) for name in ("kafka", "kafka_other")}
    world = World(tmp_path, sink=Sinks(both))
    world.land(1)
    with pytest.raises(SinkError, match=rf"kafka://kafka/{topic} and kafka://kafka_other/{topic} are one table"):
        world.run(0)
    assert world.checkpoint.offset_log.latest_id() is None
    assert rows(topic) == []


def test_brokers_that_come_and_go_make_no_other_topic(tmp_path: Path) -> None:
    topic, address = kafka.running().topic(partitions=2), kafka.running().address
    world = World(tmp_path, sink=sink(tmp_path, topic, bootstrap_servers=address))
    world.land(1)
    world.execution.publish(world.staged())
    world.expire_leases()
    world.options["sink"] = sink(tmp_path, topic, bootstrap_servers=f"{address}, 127.0.0.1:1")
    world.run(1)
    assert rows(topic) == [1]
    for name in (topic, f"{topic}-microbatch"):
        kafka.running().remove(name)
    kafka.running().topic(name=topic, partitions=2)
    world.options["sink"] = sink(tmp_path, topic, bootstrap_servers=f"127.0.0.1:2,{address}")
    world.land(2)
    with pytest.raises(SinkError, match=r"batch live/0 is committed, and .* does not know it"):
        world.run(2)
