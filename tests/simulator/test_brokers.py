"""The simulator's brokers are what real ones are, as far as the sink asks: the same questions to both by its client."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.kafka.access import Access
from airflow_provider_microbatch.kafka.cluster import Cluster
from tests.simulator.seams import simulated
from tests.simulator.world import World
from tests.support import kafka
from tests.support.waiting import wait_until

_FENCED = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)


@dataclass
class Brokers:
    """Some brokers, with a topic of one partition.

    :param address: for clients.
    :param world: whose brokers; None: real ones.
    """

    address: str
    topic: str
    world: World | None

    def producer(self, id: str, *, seconds: float = 60) -> Any:
        settings = {"bootstrap.servers": self.address, "log_level": 0}
        mine = {"transactional.id": f"{self.topic}/{id}", "transaction.timeout.ms": round(seconds * 1000)}
        made = confluent_kafka.Producer({**settings, **mine})
        made.init_transactions(30)
        made.begin_transaction()
        return made

    def send(self, producer: Any, value: bytes) -> None:
        producer.produce(topic=self.topic, key=b"key", value=value, headers=[], partition=0)
        assert producer.flush(30) == 0

    def values(self) -> list[bytes | None]:
        """What a reader of committed records finds."""
        settings = {"bootstrap.servers": self.address, "group.id": "a-reader", "isolation.level": "read_committed"}
        consumer = confluent_kafka.Consumer({**settings, "enable.partition.eof": True})
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        found = list[bytes | None]()
        while True:
            message = consumer.poll(30)
            assert message is not None
            if message.error() is not None:
                consumer.close()
                return found
            found.append(message.value())

    @property
    def cluster(self) -> Cluster:
        return Cluster(Access.of_servers(self.address, failed=SinkError), timeout=10, committed_only=True)

    def ends(self) -> tuple[int, int]:
        """Where committed records end, and where all do."""
        place = self.topic, 0
        return self.cluster.latest([place])[place], self.cluster.highest([place])[place]

    def is_settled(self) -> bool:
        if self.world is not None:
            self.world.now_ms += 500
        committed, all_of_them = self.ends()
        return committed == all_of_them


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.slow)])
def brokers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Brokers]:
    with ExitStack() as stack:
        if request.param == "real":
            yield Brokers(kafka.running().address, kafka.running().topic(), None)
            return
        world = World(tmp_path, seed="brokers", system="topic")
        stack.enter_context(simulated(world))
        topic = f"orders-{uuid.uuid4().hex}"
        world.broker.make(topic, partitions=1, policy="delete")
        yield Brokers("brokers:9092", topic, world)


def test_who_begins_fences_who_began_before(brokers: Brokers) -> None:
    first = brokers.producer("live")
    brokers.send(first, b"first")
    second = brokers.producer("live")
    brokers.send(second, b"second")
    with pytest.raises(KafkaException) as refused:
        first.commit_transaction(30)
    assert refused.value.args[0].code() in _FENCED
    second.commit_transaction(30)
    wait_until(brokers.is_settled)
    assert brokers.values() == [b"second"]


def test_an_open_transaction_keeps_later_records_from_readers_of_committed_ones(brokers: Brokers) -> None:
    slow, fast = brokers.producer("live"), brokers.producer("backfill")
    brokers.send(slow, b"slow")
    brokers.send(fast, b"fast")
    fast.commit_transaction(30)
    assert brokers.ends()[0] == 0 < brokers.ends()[1]
    assert brokers.values() == []
    slow.commit_transaction(30)
    wait_until(brokers.is_settled)
    assert brokers.values() == [b"slow", b"fast"]


def test_what_is_aborted_is_never_shown_and_its_place_stays(brokers: Brokers) -> None:
    producer = brokers.producer("live")
    brokers.send(producer, b"aborted")
    producer.abort_transaction(30)
    wait_until(brokers.is_settled)
    assert brokers.values() == []
    assert brokers.ends() == (2, 2), "the record, and the marker of its end"


def test_a_transaction_that_takes_too_long_is_ended_and_cannot_be_committed(brokers: Brokers) -> None:
    producer = brokers.producer("live", seconds=1)
    brokers.send(producer, b"late")
    wait_until(brokers.is_settled)
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(30)
    assert refused.value.args[0].code() in _FENCED
    assert brokers.values() == []


def test_a_topic_is_described_once_it_is_there(brokers: Brokers) -> None:
    name = f"{brokers.topic}-microbatch"
    assert brokers.cluster.topics([name]) == {}
    for _ in range(2):
        brokers.cluster.create(name, copies=1, settings={"cleanup.policy": "compact"})
    found = brokers.cluster.topics([brokers.topic, name])
    assert found[name].partitions == (0,)
    assert found[name].id != found[brokers.topic].id
    assert brokers.cluster.settings(name)["cleanup.policy"] == "compact"
    assert brokers.cluster.earliest([(name, 0)]) == {(name, 0): 0}
