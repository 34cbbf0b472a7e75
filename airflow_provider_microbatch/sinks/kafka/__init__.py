"""A topic of Kafka: each batch is one transaction, of which consumers that read committed records see all or nothing.

Spark writes an attempt's records into a folder, and never sees the brokers or their credentials. The task sends them in
one transaction, whose last record is the batch's mark, in a topic beside: who asks whether a batch is in reads marks,
and not the topic. ``docs/kafka-sink.md`` has the whole of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from importlib.util import find_spec
from urllib.parse import quote

from airflow_provider_microbatch.definition import is_read_back
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.runtime.masking import refusal
from airflow_provider_microbatch.sinks import OpenSink, Sink, SinkContext
from airflow_provider_microbatch.sinks.file import FileSink

__all__ = ["KafkaSink"]

FAIL, APPEND = "fail", "append"
COLUMN, JSON = "column", "json"

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
_SETTINGS = (
    *("batch.num.messages", "batch.size", "client.id", "compression.codec", "compression.level", "compression.type"),
    *("delivery.timeout.ms", "linger.ms", "message.max.bytes", "message.timeout.ms", "partitioner"),
    *("queue.buffering.max.kbytes", "queue.buffering.max.messages", "queue.buffering.max.ms", "request.timeout.ms"),
    *("retry.backoff.max.ms", "retry.backoff.ms", "socket.keepalive.enable", "socket.receive.buffer.bytes"),
    *("socket.send.buffer.bytes", "socket.timeout.ms", "sticky.partitioning.linger.ms"),
)
"""Settings of the producer that a definition may have. Definitions come out of checkpoints, where others can write, and
other settings name libraries to be loaded, files to be read, and servers; or a transaction stands on them."""


@dataclass(frozen=True)
class KafkaSink(Sink):
    """Publishes each batch as one transaction of a topic.

    A frame has the columns that Spark's own Kafka writer takes: ``value`` (text or binary; null is a tombstone), and,
    if wanted, ``key``, ``headers`` and ``partition``. Without ``key`` a record's key is its place:
    ``<pipeline>/<lane>/<id>/<row>``. Each record has headers that name its batch.

    :param topic: the topic; it must exist.
    :param bootstrap_servers: ``host:port``, comma-separated, of brokers that require no login; or ``conn_id``.
    :param conn_id: Airflow connection of type ``kafka``. Its extra is the configuration of librdkafka, as in Airflow's
        own Kafka provider; SASL and TLS need a connection.
    :param stages: a folder that Spark and the tasks both see, where attempts write: an absolute path or ``file:`` URL.
    :param value: ``column``: the frame has the column ``value``; ``json``: the value is a JSON object of all columns
        but ``key``, ``headers`` and ``partition``.
    :param on_replay: what becomes of a batch that is in and is run again, since no record can be taken back: ``fail``
        refuses before anything runs; ``append`` publishes the batch once more, under headers that say so.
    :param marks: the topic that has one small record for each batch; None: ``<topic>-microbatch``. Made if it is
        absent. Two pipelines that write one topic need two of them.
    :param transaction_seconds: how long a publish may take: the brokers end a transaction that takes longer. At most
        their ``transaction.max.timeout.ms``, which is 15 minutes by default. After a publish that was killed, readers
        of committed records wait for so long, unless the batch is published again before.
    :param options: settings of librdkafka's producer, such as ``{"compression.type": "lz4"}``.
    :param timeout: seconds that a request to the brokers may take, with all retries.
    :raises DefinitionError: for a wrong type or value, naming the field.
    """

    topic: str
    _: KW_ONLY
    stages: str
    bootstrap_servers: str | None = None
    conn_id: str | None = None
    value: str = COLUMN
    on_replay: str = FAIL
    marks: str | None = None
    transaction_seconds: float = 300.0
    options: Mapping[str, str | bool | int | float] = field(default_factory=dict)
    timeout: float = 30.0

    def __post_init__(self) -> None:
        for name in ("topic", "marks"):
            given = getattr(self, name)
            if (given is None and name == "marks") or (
                isinstance(given, str) and _TOPIC.fullmatch(given) and given not in (".", "..")
            ):
                continue
            raise self._wrong(f"{name}: {given!r:.300} is no name of a topic: letters, digits, '.', '_' and '-'")
        if self.marks == self.topic:
            raise self._wrong("marks must be another topic than the one that gets the records")
        if not _TOPIC.fullmatch(self.marks_topic):
            raise self._wrong(f"{self.marks_topic!r} is too long for a topic's name; give another by marks=")
        for name in ("bootstrap_servers", "conn_id"):
            given = getattr(self, name)
            if given is not None and (not isinstance(given, str) or not given.strip()):
                raise self._wrong(f"{name} must be a text that is not empty, or None; not {given!r}")
        if (self.bootstrap_servers is None) == (self.conn_id is None):
            raise self._wrong("give either bootstrap_servers or conn_id")
        for name, choices in (("value", (COLUMN, JSON)), ("on_replay", (FAIL, APPEND))):
            if getattr(self, name) not in choices:
                raise self._wrong(f"{name} must be one of {', '.join(map(repr, choices))}; not {getattr(self, name)!r}")
        for name in ("transaction_seconds", "timeout"):
            seconds: object = getattr(self, name)
            if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 1 <= seconds <= 86_400:
                raise self._wrong(f"{name} must be seconds, from 1 to a day; not {seconds!r}")
        self._check_options()
        try:
            _ = self.files.root
        except DefinitionError as error:
            raise self._wrong(f"stages: {error}") from error

    def open(self, context: SinkContext) -> OpenSink:
        for client, module in (("confluent-kafka", "confluent_kafka"), ("pyarrow", "pyarrow")):
            if find_spec(module) is None:
                raise DefinitionError(
                    f"KafkaSink({self.topic!r}) needs {client}, which is not installed here. Run: "
                    "pip install 'airflow-provider-microbatch[kafka]'"
                )
        from airflow_provider_microbatch.sinks.kafka.opened import OpenKafka

        return OpenKafka(self, context)

    @property
    def marks_topic(self) -> str:
        """The topic of the marks."""
        return self.marks if self.marks is not None else f"{self.topic}-microbatch"

    @property
    def files(self) -> FileSink:
        """The sink of the attempts' folder; for this topic alone, so that two topics may share ``stages``."""
        parts = (self.conn_id or self.bootstrap_servers or "", self.topic)
        return FileSink("/".join([self.stages.rstrip("/"), *(quote(part, safe="") for part in parts)]))

    def servers(self) -> set[str]:
        """The servers that the definition names: no connection is made to servers that only a checkpoint names."""
        return set() if self.bootstrap_servers is None else {self.bootstrap_servers}

    def location(self) -> str:
        return f"kafka://{self.bootstrap_servers or self.conn_id}/{self.topic}"

    def is_same_place(self, other: Sink) -> bool:
        """Lists of brokers name one cluster if they have a broker in common: brokers come and go."""
        if not isinstance(other, KafkaSink) or other.topic != self.topic:
            return False
        if self.bootstrap_servers is None or other.bootstrap_servers is None:
            return self.conn_id == other.conn_id
        own, others = (one.replace(" ", "").split(",") for one in (self.bootstrap_servers, other.bootstrap_servers))
        return not set(own).isdisjoint(others)

    @property
    def remembers_batches(self) -> bool:
        return True

    @property
    def keeps_replaced(self) -> bool:
        return True

    def not_replaceable(self) -> str | None:
        if self.on_replay == APPEND:
            return None
        return (
            f"{self.location()} cannot take back records that consumers may have read. KafkaSink(…, "
            "on_replay='append') publishes the batch once more, under headers that say so"
        )

    def would_show(self, location: str) -> bool:
        return self.files.would_show(location)

    def _check_options(self) -> None:
        if not isinstance(self.options, Mapping):
            raise self._wrong(f"options must be a dict, not {self.options!r}")
        for key, value in self.options.items():
            if not isinstance(key, str) or not isinstance(value, (str, bool, int, float)):
                raise self._wrong(f"options: {key!r} must be a text, and its value a text, number or bool")
            if key not in _SETTINGS:
                raise self._wrong(
                    f"options: {key!r:.100} is none of {', '.join(_SETTINGS)}. How the brokers are reached is said by "
                    "the connection conn_id"
                )
            refused = None if is_read_back() else refusal(key, value)
            if refused is not None:
                raise self._wrong(f"options: {refused}")

    def _wrong(self, text: str) -> DefinitionError:
        return DefinitionError(f"KafkaSink: {text.removesuffix('.')}.")
