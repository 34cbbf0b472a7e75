"""Questions to a cluster: asked by the client of librdkafka, without a JVM. Errors are of the class that the access
names."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from airflow_provider_microbatch.exceptions import MicroBatchError, SourceError
from airflow_provider_microbatch.kafka.access import Access
from airflow_provider_microbatch.lifetime import Close, shared
from airflow_provider_microbatch.registry import DISTRIBUTION

log = logging.getLogger(__name__)

T = TypeVar("T")

_PAUSE = 0.05
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # all zeros

Partition = tuple[str, int]
"""Topic and number."""

Position = Mapping[Partition, int]
"""The next offset to be read, by partition."""


@dataclass(frozen=True, kw_only=True)
class Topic:
    """:param id: id of the topic: a topic that is removed and created again under the same name has another one.
    :param partitions: numbers of its partitions.
    :param copies: how many brokers have each partition.
    """

    name: str
    id: str
    partitions: tuple[int, ...]
    copies: int = 1


@dataclass(frozen=True, kw_only=True)
class Record:
    """:param offset: -1 for none.
    :param time_ms: its timestamp, milliseconds since the epoch, UTC; -1 if the question had no time.
    """

    offset: int
    time_ms: int


def named(partition: Partition) -> str:
    """Name a partition as Kafka's own tools do: ``orders-3``."""
    return f"{partition[0]}-{partition[1]}"


class Cluster:
    """:param access: settings of the access.
    :param timeout: seconds that one request may take, with all retries of the client.
    :param committed_only: the end of a partition is where its first open transaction begins.
    """

    def __init__(self, access: Access, *, timeout: float, committed_only: bool) -> None:
        self._access = access
        self._timeout = timeout
        self._committed_only = committed_only

    def topics_like(self, pattern: str) -> list[str]:
        """Names of the topics that a pattern matches as a whole; without Kafka's own topics."""
        found = self._ask(lambda client: client.list_topics(timeout=self._timeout)).topics
        return sorted(name for name in found if re.fullmatch(pattern, name) and not name.startswith("__"))

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        """Return those of the topics that exist.

        :raises MicroBatchError: of the class ``failed``, if the brokers give topics no ids: nobody could tell a topic
            from one that was made again.
        """
        if not names:
            return {}
        kafka = library()
        asked = kafka.TopicCollection(sorted(names))
        futures = self._ask(lambda client: client.describe_topics(asked, request_timeout=self._timeout))
        found = {}
        for name, future in futures.items():
            with suppress(_UnknownError):
                told = self._result(future)
                if str(told.topic_id) == _NO_ID:
                    raise self._access.failed(
                        f"Kafka at {self._access.servers} gives topic {name!r} no id: its brokers are older than 3.1, "
                        "or not Kafka's. Whether the topic was removed and made again could not be told."
                    )
                found[name] = Topic(
                    name=name,
                    id=str(told.topic_id),
                    partitions=tuple(sorted(one.id for one in told.partitions)),
                    copies=max((len(one.replicas) for one in told.partitions), default=1),
                )
        return found

    def create(self, name: str, *, copies: int, settings: Mapping[str, str]) -> None:
        """Make a topic of one partition, unless it is there. On return its partition has a leader.

        :param copies: how many brokers are to have it.
        :param settings: of the topic, by Kafka's names.
        """
        kafka = library()
        new = kafka.admin.NewTopic(name, num_partitions=1, replication_factor=copies, config=dict(settings))
        future = self._ask(lambda client: client.create_topics([new], request_timeout=self._timeout))[name]
        with suppress(_ExistsError):
            self._result(future)
        until = time.monotonic() + self._timeout
        # The client would keep a partition without a leader in mind, and refuse each question about it for half a
        # minute.
        while not self._is_led(name) and time.monotonic() < until:
            time.sleep(_PAUSE)

    def settings(self, name: str) -> dict[str, str]:
        """Settings of a topic, by Kafka's names."""
        kafka = library()
        asked = kafka.admin.ConfigResource(kafka.admin.ResourceType.TOPIC, name)
        futures = self._ask(lambda client: client.describe_configs([asked], request_timeout=self._timeout))
        return {key: str(entry.value) for key, entry in self._result(futures[asked]).items()}

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The first offset of each partition that is still there."""
        return self._offsets(dict.fromkeys(partitions, self._spec().earliest()))

    def latest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The next offset of each partition; in a topic with transactions, where the first open one begins."""
        return self._offsets(dict.fromkeys(partitions, self._spec().latest()), committed_only=self._committed_only)

    def highest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The next offset of each partition, whether transactions are open or not."""
        return self._offsets(dict.fromkeys(partitions, self._spec().latest()))

    def since(self, partitions: Iterable[Partition], ms: int) -> dict[Partition, Record | None]:
        """The first record of that time or later, by the records' own timestamps; None if there is none yet.

        :param ms: milliseconds since the epoch, UTC.
        """
        found = self._records(dict.fromkeys(partitions, self._spec().for_timestamp(ms)))
        return {one: record if record.offset >= 0 else None for one, record in found.items()}

    def commit(self, group: str, position: Position) -> None:
        """Set the offsets of a consumer group to the position, for people and tools that look at the group."""
        kafka = library()
        asked = [
            kafka.ConsumerGroupTopicPartitions(group, [kafka.TopicPartition(*one, at) for one, at in position.items()])
        ]
        futures = self._ask(
            lambda client: client.alter_consumer_group_offsets(asked, request_timeout=self._timeout)
        )  # fmt: skip
        for future in futures.values():
            for one in self._result(future).topic_partitions:
                if one.error is not None:
                    told = f"consumer group {group!r}, {one.topic}-{one.partition}: {one.error.str()}"
                    raise self._access.failed(told)

    def _is_led(self, name: str) -> bool:
        found = self._ask(lambda client: client.list_topics(name, timeout=self._timeout)).topics[name]
        return bool(found.partitions) and all(one.leader >= 0 for one in found.partitions.values())

    def _offsets(self, asked: Mapping[Partition, Any], *, committed_only: bool = False) -> dict[Partition, int]:
        return {one: record.offset for one, record in self._records(asked, committed_only=committed_only).items()}

    def _records(self, asked: Mapping[Partition, Any], *, committed_only: bool = False) -> dict[Partition, Record]:
        if not asked:
            return {}
        kafka = library()
        level = kafka.IsolationLevel.READ_COMMITTED if committed_only else kafka.IsolationLevel.READ_UNCOMMITTED
        specs = {kafka.TopicPartition(*one): spec for one, spec in asked.items()}
        futures = self._ask(
            lambda client: client.list_offsets(specs, isolation_level=level, request_timeout=self._timeout)
        )  # fmt: skip
        found = {}
        for one, future in futures.items():
            try:
                told = self._result(future)
                found[one.topic, one.partition] = Record(offset=int(told.offset), time_ms=int(told.timestamp))
            except _UnknownError as error:
                where = named((one.topic, one.partition))
                raise self._access.failed(f"{where} does not exist in {self._access.servers}: {error}") from error
        return found

    def _ask(self, question: Callable[[Any], T]) -> T:
        kafka = library()
        try:
            return question(self._held.client)
        except kafka.KafkaException as error:
            raise self._error(error) from error

    def _result(self, future: Any) -> Any:
        kafka = library()
        try:
            return future.result(timeout=self._timeout + 5.0)
        except kafka.KafkaException as error:
            if error.args[0].code() in _unknown_codes():
                raise _UnknownError(error.args[0].str()) from error
            if error.args[0].code() == kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise _ExistsError from error
            raise self._error(error) from error
        except TimeoutError as error:
            raise self._access.failed(f"no answer from {self._access.servers} in {self._timeout:g} seconds.") from error

    def _error(self, error: Any) -> MicroBatchError:
        told = error.args[0].str() if error.args and hasattr(error.args[0], "str") else str(error)
        # A timeout does not tell its cause: the client repeated the request, and reported an error for each try.
        heard = self._held.last_word()
        return self._access.failed(
            f"Kafka at {self._access.servers} did not answer as it should: {told}{f' ({heard})' if heard else ''}. "
            "Is it up, and may this user read there?"
        )

    @cached_property
    def _held(self) -> _Held:
        # The client is also referenced from here: its requests fail when it is no longer referenced.
        key = (type(self).__module__, *sorted(self._access.client.items()))
        return shared(key, lambda: _opened(self._access))

    @staticmethod
    def _spec() -> Any:
        return library().admin.OffsetSpec


class _UnknownError(Exception):
    """There is no such topic or partition."""


class _ExistsError(Exception):
    """There is such a topic."""


class _Held:
    """A client. It has no close: its threads end when it is no longer referenced."""

    def __init__(self) -> None:
        self.client: Any = None
        self._heard = ""

    def hear(self, error: Any) -> None:
        log.debug("librdkafka: %s", error)
        # "All brokers are down" comes after the error with the cause.
        if error.code() != library().KafkaError._ALL_BROKERS_DOWN:
            self._heard = error.str()

    def last_word(self) -> str:
        """The client's last error about a broker, such as a refused password; ``""`` if there is none."""
        if self.client is not None:
            self.client.poll(0)
        return self._heard

    def close(self) -> None:
        self.client = None


def _opened(access: Access) -> tuple[_Held, Close]:
    kafka = library()
    # The client would report unreachable brokers on stderr, at each retry; exceptions report them too.
    settings = {"log_level": 2, **access.client}
    held = _Held()
    try:
        held.client = kafka.admin.AdminClient(settings, error_cb=held.hear)
    except kafka.KafkaException as error:
        raise access.failed(f"the client for {access.servers} cannot be made: {error.args[0].str()}") from error
    return held, held.close


def _unknown_codes() -> tuple[int, ...]:
    error = library().KafkaError
    return (error.UNKNOWN_TOPIC_OR_PART, error._UNKNOWN_PARTITION, error._UNKNOWN_TOPIC)


def library() -> Any:
    """The module of librdkafka's client. :raises SourceError: if it is not installed."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise SourceError(
            f"topics are reached by confluent-kafka, which is not installed ({error}). "
            f"Run: pip install '{DISTRIBUTION}[kafka]'"
        ) from error
    return confluent_kafka
