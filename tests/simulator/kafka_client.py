"""What stands in for librdkafka's client: producer, consumer and admin client of the world's brokers. Errors, places
and questions are the client's own classes; only what would be asked over a socket is answered here.

Each request is an operation of the process, before which it may die. The world itself is answered at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import confluent_kafka
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition, admin

from tests.simulator.broker import LATE, UNANSWERED, UNDONE, Broker, FencedError, Header, Place, Record

if TYPE_CHECKING:
    from tests.simulator.world import World

_FETCHED = 64
"""How many records come with one answer."""


def stand_ins(world: World) -> Sequence[tuple[Any, str, Any]]:
    """Owner and name of what is replaced while the world is played, and what takes its place."""
    return (
        (confluent_kafka, "Producer", partial(_Producer, world)),
        (confluent_kafka, "Consumer", partial(_Consumer, world)),
        (admin, "AdminClient", partial(_Admin, world)),
    )


class Clock:
    """What the sink has of :mod:`time` in place of the real one: it waits for brokers, and the world's time passes."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        return self._world.now_ms / 1000

    def sleep(self, seconds: float) -> None:
        """A second at least: who waits for a transaction of minutes would take thousands of turns."""
        seconds = max(seconds, 1.0)
        if self._world.processes.current is None:
            self._world.now_ms += round(1000 * seconds)
        else:
            self._world.processes.wait("time to pass", lambda: False, seconds=seconds)


def _failed(code: int, told: str, *, fatal: bool = False, retriable: bool = False) -> KafkaException:
    return KafkaException(KafkaError(code, told, fatal, retriable))


def _fenced() -> KafkaException:
    return _failed(KafkaError._FENCED, "another producer of this transactional id has begun", fatal=True)


class _Client:
    """:param world: where it runs.
    :param settings: librdkafka's.
    """

    def __init__(self, world: World, settings: Mapping[str, Any]) -> None:
        self._world, self._settings = world, settings
        self._broker: Broker = world.broker

    def _reach(self, what: str, *, seconds: float) -> bool:
        """Ask; False if the brokers could not be reached for so long."""
        broker, processes = self._broker, self._world.processes
        processes.point(f"kafka: {what}")
        if processes.current is None or not broker.unreachable:
            return True
        return processes.wait(f"the brokers, for {what}", lambda: not broker.unreachable, seconds=seconds)

    def _ask(self, what: str, *, seconds: float) -> None:
        if not self._reach(what, seconds=seconds):
            raise _failed(KafkaError._TIMED_OUT, f"{what}: timed out", retriable=True)


class _Producer(_Client):
    """Of one transactional id. Records are sent when they are flushed."""

    def __init__(self, world: World, settings: Mapping[str, Any]) -> None:
        super().__init__(world, settings)
        self._id = str(settings["transactional.id"])
        self._timeout_ms = int(settings["transaction.timeout.ms"])
        self._epoch = -1
        self._unsent: list[tuple[Place, Record]] = []

    def list_topics(self, name: str, *, timeout: float) -> None:
        """Only reaches a broker: nobody looks at what a producer is told."""
        self._ask("reach a broker", seconds=timeout)

    def init_transactions(self, timeout: float) -> None:
        self._ask("begin a producer", seconds=timeout)
        begun = self._broker.begin(self._id)
        until = self._world.now_ms + 1000 * timeout
        while begun is None:
            if self._world.now_ms > until:
                raise _failed(KafkaError._TIMED_OUT, "a transaction before is not settled", retriable=True)
            Clock(self._world).sleep(1)
            begun = self._broker.begin(self._id)
        self._epoch = begun

    def begin_transaction(self) -> None:
        """Nothing is asked for it."""

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        headers: Sequence[Header] = (),
    ) -> None:
        if partition < 0:
            partition = zlib.crc32(key or b"") % len(self._broker.topics[topic].logs)
        self._unsent.append(((topic, partition), Record(key=key, value=value, headers=tuple(headers))))

    def poll(self, timeout: float) -> int:
        return 0

    def flush(self, timeout: float) -> int:
        """Partition by partition: a process may die between two."""
        while self._unsent:
            place = self._unsent[0][0]
            if not self._reach(f"send records to {place}", seconds=timeout):
                break
            sent = [record for one, record in self._unsent if one == place]
            self._fencing(partial(self._append, place, sent))
            self._unsent = [(one, record) for one, record in self._unsent if one != place]
        return len(self._unsent)

    def _append(self, place: Place, records: Sequence[Record]) -> None:
        self._broker.append(place, records, id=self._id, epoch=self._epoch, timeout_ms=self._timeout_ms)

    def commit_transaction(self, timeout: float) -> None:
        self._ask("commit", seconds=timeout)
        fate = self._broker.next_commits.pop(0) if self._broker.next_commits else ""
        if fate == LATE:
            self._commit_late(timeout)
            return
        if fate != UNDONE:
            self._fencing(lambda: self._broker.commit(self._id, self._epoch))
        if fate in (UNDONE, UNANSWERED):
            raise _failed(KafkaError._TRANSPORT, "the connection was closed")
        self._world.point("kafka: the answer to a commit")

    def _commit_late(self, timeout: float) -> None:
        request = self._broker.send_late(self._id, self._epoch)

        def is_answered() -> bool:
            self._broker.pass_time()
            return request.answer is not None

        if not self._world.processes.wait("the answer to a commit", is_answered, seconds=timeout):
            raise _failed(KafkaError._TIMED_OUT, "the commit: timed out", retriable=True)
        if request.answer == "fenced":
            raise _fenced()

    def abort_transaction(self, timeout: float) -> None:
        self._ask("abort", seconds=timeout)
        self._fencing(lambda: self._broker.abort(self._id, self._epoch))

    @staticmethod
    def _fencing(request: Callable[[], None]) -> None:
        try:
            request()
        except FencedError:
            raise _fenced() from None


@dataclass(frozen=True)
class _Message:
    found: Record
    at: int
    failed: KafkaError | None = None

    def error(self) -> KafkaError | None:
        return self.failed

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.found.key

    def value(self) -> bytes | None:
        return self.found.value


class _Consumer(_Client):
    """Of one partition, and of committed records."""

    def __init__(self, world: World, settings: Mapping[str, Any]) -> None:
        super().__init__(world, settings)
        assert settings["isolation.level"] == "read_committed", "no other reader is played"
        assert settings["enable.partition.eof"], "nor one that waits at the end"
        self._place: Place = ("", 0)
        self._at = 0
        self._fetched: list[tuple[int, Record]] = []

    def assign(self, places: Sequence[TopicPartition]) -> None:
        (one,) = places
        self._place, self._at, self._fetched = (one.topic, one.partition), one.offset, []

    def poll(self, timeout: float) -> _Message | None:
        if not self._fetched:
            if not self._reach(f"read {self._place} from {self._at}", seconds=timeout):
                return None
            if self._place[0] not in self._broker.topics:
                return self._error(KafkaError.UNKNOWN_TOPIC_OR_PART)
            if self._at < self._broker.log(self._place).start:
                return self._error(KafkaError._AUTO_OFFSET_RESET)
            self._fetched, self._at = self._broker.fetch(self._place, self._at, most=_FETCHED)
        if not self._fetched:
            return self._error(KafkaError._PARTITION_EOF)
        offset, record = self._fetched.pop(0)
        return _Message(record, offset)

    def close(self) -> None:
        """It holds nothing."""

    def _error(self, code: int) -> _Message:
        return _Message(Record(), self._at, KafkaError(code))


class _Admin(_Client):
    """What the package asks of a cluster."""

    def __init__(self, world: World, settings: Mapping[str, Any], *, error_cb: Callable[[Any], None]) -> None:
        super().__init__(world, settings)

    def poll(self, timeout: float) -> int:
        return 0

    def describe_topics(self, asked: Any, *, request_timeout: float) -> dict[str, Future[Any]]:
        self._ask("describe topics", seconds=request_timeout)
        return {name: self._answer(name, self._described) for name in asked.topic_names}

    def list_topics(self, name: str | None = None, *, timeout: float) -> Any:
        self._ask("list topics", seconds=timeout)
        named: Collection[str] = self._broker.topics if name is None else [name]
        return SimpleNamespace(topics={one: self._listed(one) for one in named})

    def create_topics(self, new: Sequence[Any], *, request_timeout: float) -> dict[str, Future[None]]:
        self._ask("create topics", seconds=request_timeout)
        return {one.topic: _future(partial(self._create, one)) for one in new}

    def describe_configs(self, asked: Sequence[Any], *, request_timeout: float) -> dict[Any, Future[Any]]:
        self._ask("describe settings", seconds=request_timeout)
        return {one: self._answer(one.name, self._configured) for one in asked}

    def list_offsets(
        self, asked: Mapping[TopicPartition, Any], *, isolation_level: IsolationLevel, request_timeout: float
    ) -> dict[TopicPartition, Future[Any]]:
        self._ask("list offsets", seconds=request_timeout)
        committed = isolation_level == IsolationLevel.READ_COMMITTED

        def offset_of(one: TopicPartition, spec: Any, _: str) -> Any:
            place = one.topic, one.partition
            if type(spec) is type(admin.OffsetSpec.earliest()):
                return SimpleNamespace(offset=self._broker.log(place).start, timestamp=-1)
            return SimpleNamespace(offset=self._broker.end(place, committed=committed), timestamp=-1)

        return {one: self._answer(one.topic, partial(offset_of, one, spec)) for one, spec in asked.items()}

    def _answer(self, name: str, answer: Callable[[str], Any]) -> Future[Any]:
        def asked() -> Any:
            if name not in self._broker.topics:
                raise _failed(KafkaError.UNKNOWN_TOPIC_OR_PART, f"there is no topic {name}")
            return answer(name)

        return _future(asked)

    def _described(self, name: str) -> Any:
        topic = self._broker.topics[name]
        partitions = [SimpleNamespace(id=number, replicas=[1]) for number in range(len(topic.logs))]
        return SimpleNamespace(topic_id=topic.id, partitions=partitions)

    def _listed(self, name: str) -> Any:
        topic = self._broker.topics.get(name)
        numbers = range(0 if topic is None else len(topic.logs))
        return SimpleNamespace(partitions={number: SimpleNamespace(leader=1) for number in numbers})

    def _configured(self, name: str) -> Any:
        return {"cleanup.policy": SimpleNamespace(value=self._broker.topics[name].policy)}

    def _create(self, new: Any) -> None:
        if new.topic in self._broker.topics:
            raise _failed(KafkaError.TOPIC_ALREADY_EXISTS, f"there is a topic {new.topic}")
        self._broker.make(new.topic, partitions=new.num_partitions, policy=new.config["cleanup.policy"])


def _future(answer: Callable[[], Any]) -> Future[Any]:
    found = Future[Any]()
    try:
        found.set_result(answer())
    except KafkaException as error:
        found.set_exception(error)
    return found
