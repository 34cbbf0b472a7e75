"""A Kafka of the tests' own: one broker, by KRaft, on free ports of loopback, from jars that Maven fetches."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.connections import Connection
from demo.local_airflow import free_port
from tests.environments import jars
from tests.support.certificates import certificates
from tests.support.child_server import only_here
from tests.support.waiting import wait_until

SECONDS = 60.0
RUNNING = "MICROBATCH_TESTS_KAFKA"
"""Environment variable that tells processes of the tests which broker runs already."""

LOGIN, PASSWORD = "reader", 'p"a\\ss;word'
"""Of the listener that asks for them."""


@dataclass(frozen=True, kw_only=True)
class Broker:
    """One that runs.

    :param address: ``host:port`` of the listener without a password.
    :param secured: that of the one by TLS which asks for :data:`LOGIN` and :data:`PASSWORD`.
    :param ca: file with the certificate that the latter's is signed by.
    """

    address: str
    secured: str = ""
    ca: str = ""

    @property
    def login(self) -> dict[str, str]:
        """What a connection to the listener by TLS has."""
        return {
            "bootstrap.servers": self.secured,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": LOGIN,
            "sasl.password": PASSWORD,
            "ssl.ca.location": self.ca,
        }

    def topic(self, *, partitions: int = 1, name: str | None = None, config: Mapping[str, str] | None = None) -> str:
        """Make a topic, of a name that no other has."""
        from confluent_kafka.admin import NewTopic

        name = name or f"orders-{uuid.uuid4().hex}"
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        self.admin().create_topics([new])[name].result(SECONDS)
        self._wait_for(name, partitions)
        return name

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic so many partitions in all."""
        from confluent_kafka.admin import NewPartitions

        self.admin().create_partitions([NewPartitions(topic, partitions)])[topic].result(SECONDS)
        self._wait_for(topic, partitions)

    def remove(self, topic: str) -> None:
        """Remove a topic, and wait until nobody is told of it any more."""
        admin = self.admin()
        admin.delete_topics([topic])[topic].result(SECONDS)
        wait_until(lambda: topic not in admin.list_topics(timeout=SECONDS).topics)

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """What retention does: rows before an offset are gone."""
        from confluent_kafka import TopicPartition

        one = TopicPartition(topic, partition, offset)
        self.admin().delete_records([one])[one].result(SECONDS)

    def send(
        self,
        topic: str,
        values: Sequence[str | bytes],
        *,
        partition: int = 0,
        at_ms: int | None = None,
        headers: Any = None,
    ) -> None:
        """Append values, durable on return.

        :param at_ms: their time; None: now.
        """
        producer = self.producer()
        for value in values:
            more = {} if at_ms is None else {"timestamp": at_ms}
            producer.produce(topic, value, partition=partition, headers=headers, **more)
        assert producer.flush(SECONDS) == 0

    def transaction(self, topic: str, values: Sequence[str], *, partition: int = 0, abort: bool = False) -> None:
        """Append values in a transaction of their own; on return it is over for whoever reads too. A broker answers the
        end of a transaction before it writes the end's record to the partition."""
        producer = self.producer({"transactional.id": uuid.uuid4().hex})
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=partition)
        producer.flush(SECONDS)
        if abort:
            producer.abort_transaction(SECONDS)
        else:
            producer.commit_transaction(SECONDS)
        wait_until(lambda: self.is_settled(topic, partition))

    def producer(self, config: Mapping[str, Any] | None = None) -> Any:
        from confluent_kafka import Producer

        return Producer({"bootstrap.servers": self.address, "linger.ms": 0, "log_level": 0, **(config or {})})

    def admin(self) -> Any:
        """Held: what it was asked for fails when it goes."""
        return _admin(self.address)

    def is_settled(self, topic: str, partition: int = 0) -> bool:
        """Whether no transaction is open in a partition."""
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        one = TopicPartition(topic, partition)
        ends = [
            self.admin().list_offsets({one: OffsetSpec.latest()}, isolation_level=level)[one].result(SECONDS).offset
            for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        ]
        return ends[0] == ends[1]

    def _wait_for(self, topic: str, partitions: int) -> None:
        """Until whoever asks is told of all partitions and of who leads each: the broker knows it a moment later."""
        from confluent_kafka import KafkaException, TopicCollection, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        def led() -> bool:
            asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}
            try:
                told = self.admin().describe_topics(TopicCollection([topic]))[topic].result(SECONDS)
                for future in self.admin().list_offsets(asked).values():
                    future.result(SECONDS)
            except KafkaException:
                return False
            return len(told.partitions) == partitions

        wait_until(led)

    def answers(self) -> bool:
        """Whether it can be spoken to."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        quiet = {"bootstrap.servers": self.address, "log_level": 0}
        try:
            return bool(AdminClient(quiet, error_cb=lambda _: None).list_topics(timeout=2.0).brokers)
        except KafkaException:
            return False


@cache
def _admin(address: str) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": address, "log_level": 0})


def running() -> Broker:
    """The broker of this process and its children: started at the first call, stopped when the process ends that has
    started it. Whoever is started with :data:`RUNNING` in its environment uses that one."""
    told = os.environ.get(RUNNING)
    if told is None:
        stack = ExitStack()
        started = stack.enter_context(broker())
        told = os.environ[RUNNING] = "|".join((started.address, started.secured, started.ca))
        only_here(stack.close)
    address, secured, ca = told.split("|")
    return Broker(address=address, secured=secured, ca=ca)


def connection(conn_id: str = "kafka") -> Connection:
    """What Airflow would know of it."""
    return Connection(conn_id=conn_id, conn_type="kafka", extra={"bootstrap.servers": running().address})


@contextmanager
def broker() -> Iterator[Broker]:
    """Start one, and stop it at the end.

    :raises AssertionError: if it does not start; with what it said.
    """
    folder = Path(tempfile.mkdtemp(prefix="microbatch-kafka-"))
    try:
        ports = set[int]()
        while len(ports) < 3:  # the kernel may name one that is free again twice
            ports.add(free_port())
        plain, secured, controller = ports
        certificates(folder)
        settings = folder / "server.properties"
        settings.write_text(_settings(folder, plain=plain, secured=secured, controller=controller))
        java = ["java", "-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", _classpath()]
        log = folder / "log"
        with log.open("ab") as output:
            to_log: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, "cwd": folder}
            cluster = ["format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(settings)]
            made = subprocess.run([*java, "kafka.tools.StorageTool", *cluster], check=False, **to_log)
            assert made.returncode == 0, log.read_text()
            # A session of its own, so that the keys that end the tests do not end it first.
            process = subprocess.Popen([*java, "kafka.Kafka", str(settings)], start_new_session=True, **to_log)
        try:
            found = Broker(
                address=f"127.0.0.1:{plain}", secured=f"127.0.0.1:{secured}", ca=str(folder / "ca.pem")
            )  # fmt: skip
            wait_until(lambda: process.poll() is not None or found.answers())
            assert process.poll() is None, log.read_text()
            yield found
        finally:
            # Nothing has to outlive it, so nothing has to be closed in order.
            process.send_signal(signal.SIGKILL)
            process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _classpath() -> str:
    return os.pathsep.join(map(str, jars("kafka-broker")))


def _settings(folder: Path, *, plain: int, secured: int, controller: int) -> str:
    password = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    jaas = f'{module} user_{LOGIN}="{password}";'.replace("\\", "\\\\")
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": (
            f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{secured},CONTROLLER://127.0.0.1:{controller}"
        ),
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{secured}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
        "controller.listener.names": "CONTROLLER",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": folder / "server.pem",
        "log.dirs": folder / "data",
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "auto.create.topics.enable": "false",
        "num.partitions": 1,
        "log.segment.delete.delay.ms": 1000,
        # Twice a second a controller writes a record that says nothing, for brokers that are not there.
        "metadata.max.idle.interval.ms": 0,
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())
