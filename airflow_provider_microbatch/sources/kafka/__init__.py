"""Kafka topics as a source: planned by librdkafka, read by Spark's own connector."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from airflow_provider_microbatch.definition import is_read_back
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.runtime.job import Requirements
from airflow_provider_microbatch.runtime.masking import refusal
from airflow_provider_microbatch.sources import OpenSource, Source, SourceContext
from airflow_provider_microbatch.sources.arguments import check_limit, connector, moment_ms, texts

EARLIEST, LATEST = "earliest", "latest"
FAIL, RECORD_GAP = "fail", "record_gap"
READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
_PLANNED_HERE = {
    "assign": "partitions",
    "subscribe": "topics",
    "subscribepattern": "pattern",
    "startingoffsets": "start",
    "endingoffsets": "max_rows",
    "startingoffsetsbytimestamp": "start",
    "endingoffsetsbytimestamp": "max_rows",
    "startingtimestamp": "start",
    "endingtimestamp": "max_rows",
    "startingoffsetsbytimestampstrategy": "start",
    "failondataloss": "on_data_loss",
    "maxoffsetspertrigger": "max_rows",
    "minoffsetspertrigger": "max_rows",
    "maxtriggerdelay": "max_rows",
    "includeheaders": "headers",
    "kafka.bootstrap.servers": "bootstrap_servers",
    "kafka.isolation.level": "isolation",
    "kafka.enable.auto.commit": "group_id",
    "kafka.auto.offset.reset": "start",
    "kafka.group.id": "group_id",
}
"""Spark's options that decide which records are read. If Spark got them beside a plan, it would read another range."""


@dataclass(frozen=True)
class KafkaSource(Source):
    """Records of topics; each is read once, by the batch that planned its offset.

    Frames have the columns that Spark's connector gives: ``key`` and ``value`` (binary), ``topic``, ``partition``,
    ``offset``, ``timestamp``, ``timestampType``, and ``headers`` if requested.

    :param bootstrap_servers: ``host:port``, comma-separated, of brokers that require no login; or ``conn_id``.
    :param conn_id: Airflow connection of type ``kafka``. Its extra is the configuration of librdkafka, as in Airflow's
        own Kafka provider; SASL and TLS need a connection.
    :param topics: names of topics; or ``pattern``, or ``partitions``.
    :param pattern: a regular expression that whole names of topics match; topics that come later are read too.
    :param partitions: the partitions to read, by topic: ``{"orders": [0, 1]}``. Other partitions of the topic are not
        read.
    :param start: where the first batch begins: ``earliest``; ``latest``, as of the first plan; a moment, as ISO 8601
        text with its offset from UTC or as milliseconds since the epoch, to begin at the first record of that time or
        later, and no sooner than then; or offsets, by topic and partition, of all partitions:
        ``{"orders": {"0": 23, "1": -2}}``, where -2 is the earliest and -1 the latest. Topics and partitions created
        later begin at their first record.
    :param max_rows: the largest number of offsets in a batch, shared by the partitions in proportion to how far each is
        behind. Control records and records of aborted transactions have offsets, and are not rows.
    :param on_data_loss: reaction to records that are gone before they were read, for example by retention: ``fail``,
        with an error that names them; or ``record_gap``: go on without them, which the batch then reports.
    :param isolation: ``read_committed``: no batch reads records of an open or aborted transaction. A transaction that
        stays open holds up the records after it in its partition. ``read_uncommitted`` reads everything.
    :param headers: add the column ``headers``.
    :param group_id: after each commit, set this consumer group's offsets to the pipeline's position, for dashboards of
        lag. The source never reads from them. No consumer may be a member of the group.
    :param options: options of Spark's connector that decide how it reads, and not which records (``minPartitions``,
        ``kafka.fetch.max.bytes``, …).
    :param timeout: seconds that a request to the brokers may take when a batch is planned, with all retries.
    :param packages: Maven coordinates of Spark's connector, for spark-submit. None: the connector for the PySpark that
        is installed where the task runs. Empty where Spark has it already.
    :param jars: paths or addresses of the connector's jars; then ``packages`` is empty unless it is given.
    :raises DefinitionError: for a wrong type or value, naming the field.
    """

    _: KW_ONLY
    bootstrap_servers: str | None = None
    conn_id: str | None = None
    topics: Sequence[str] = ()
    pattern: str | None = None
    partitions: Mapping[str, Sequence[int]] = field(default_factory=dict)
    start: str | int | Mapping[str, Mapping[str, int]] = EARLIEST
    max_rows: int | None = None
    on_data_loss: str = FAIL
    isolation: str = READ_COMMITTED
    headers: bool = False
    group_id: str | None = None
    options: Mapping[str, str | bool | int | float] = field(default_factory=dict)
    timeout: float = 30.0
    packages: Sequence[str] | None = None
    jars: Sequence[str] = ()

    def __post_init__(self) -> None:
        # A definition travels as JSON, which has lists, and only texts as keys.
        if isinstance(self.topics, str):
            object.__setattr__(self, "topics", (self.topics,))
        for name in ("topics", "jars", "packages"):
            if name != "packages" or self.packages is not None:
                object.__setattr__(self, name, texts(name, getattr(self, name), wrong=self._wrong))
        self._check_text("bootstrap_servers", "conn_id", "pattern", "group_id")
        if (self.bootstrap_servers is None) == (self.conn_id is None):
            raise self._wrong("give either bootstrap_servers or conn_id")
        self._check_topics()
        self._check_start()
        for name, choices in (
            ("on_data_loss", (FAIL, RECORD_GAP)),
            ("isolation", (READ_COMMITTED, READ_UNCOMMITTED)),
            ("headers", (True, False)),
        ):
            value = getattr(self, name)
            if not isinstance(value, type(choices[0])) or value not in choices:
                raise self._wrong(f"{name} must be one of {', '.join(map(repr, choices))}; not {value!r}")
        check_limit("max_rows", self.max_rows, wrong=self._wrong)
        if not isinstance(self.timeout, (int, float)) or isinstance(self.timeout, bool) or not 0 < self.timeout < 3600:
            raise self._wrong(f"timeout must be seconds, above 0 and below an hour; not {self.timeout!r}")
        self._check_options()

    def open(self, context: SourceContext) -> OpenSource:
        """Return the source opened for one checkpoint."""
        from airflow_provider_microbatch.sources.kafka.open import OpenKafkaSource

        return OpenKafkaSource(self, context)

    def servers(self) -> set[str]:
        """The servers that the definition names: no connection is made to servers that only a checkpoint names."""
        return set() if self.bootstrap_servers is None else {self.bootstrap_servers}

    def reads_as(self) -> Mapping[str, str | None]:
        """The isolation level, the headers, and the connector's options, whose names are case-insensitive."""
        options = {f"options[{key.lower()!r}]": as_spark(value) for key, value in self.options.items()}
        return {"isolation": self.isolation, "headers": as_spark(self.headers), **options}

    def keeps_rows(self) -> bool:
        """True: records do not change; a compacted topic loses some."""
        return True

    def moved_from(self, before: Source) -> str | None:
        """Positions belong to topics, each of which is identified by its id, whatever the list or its order is."""
        if not isinstance(before, KafkaSource) or self.pattern is not None or before.pattern is not None:
            return super().moved_from(before)
        then, now = set(before.names), set(self.names)
        told = [f"{', '.join(sorted(now - then))} begin as new topics do"] if now - then else []
        told += [f"{', '.join(sorted(then - now))} are not read any more"] if then - now else []
        return " and ".join(told) or None

    def shares_with(self, other: Source) -> bool:
        """Whether both sources could read the same topic."""
        if not isinstance(other, KafkaSource) or (self.bootstrap_servers, self.conn_id) != (
            other.bootstrap_servers,
            other.conn_id,
        ):
            return False
        if self.pattern is not None or other.pattern is not None:
            one, more = (self, other) if self.pattern is not None else (other, self)
            return more.pattern is not None or any(re.fullmatch(one.pattern or "", topic) for topic in more.names)
        return not set(self.names).isdisjoint(other.names)

    def location(self) -> str:
        """Cluster and topics."""
        where = self.bootstrap_servers or self.conn_id
        return f"kafka://{where}/{self.pattern if self.pattern is not None else ','.join(self.names)}"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the topics that the definition lists."""
        return tuple(self.topics) or tuple(self.partitions)

    @property
    def begins_ms(self) -> int | None:
        """The moment at which the first batch begins, milliseconds since the epoch; None if it begins otherwise."""
        return self.start if isinstance(self.start, int) else moment_ms(self.start)

    def requires(self) -> Requirements:
        """Return the packages of Spark's connector.

        :raises DefinitionError: if the version is not known, since no PySpark is installed here.
        """
        return connector(
            self.packages,
            self.jars,
            name="the connector",
            newest="4.1.3",
            made=lambda pyspark: f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark}",
            wrong=self._wrong,
        )

    def _check_topics(self) -> None:
        given = [name for name in ("topics", "pattern", "partitions") if getattr(self, name)]
        if len(given) != 1:
            raise self._wrong("give one of topics, pattern and partitions, and not empty")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise self._wrong(f"pattern {self.pattern!r} is no regular expression: {error}") from error
        if not isinstance(self.partitions, Mapping) or not all(
            isinstance(numbers, (list, tuple)) and numbers and all(type(one) is int and one >= 0 for one in numbers)
            for numbers in self.partitions.values()
        ):
            raise self._wrong(f"partitions must be numbers by topic, {{'orders': [0, 1]}}; not {self.partitions!r}")
        object.__setattr__(
            self, "partitions", {topic: sorted(set(numbers)) for topic, numbers in self.partitions.items()}
        )
        for topic in self.names:
            if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
                raise self._wrong(f"{topic!r} is no name of a topic: letters, digits, '.', '_' and '-', at most 249")

    def _check_start(self) -> None:
        start = self.start
        if isinstance(start, Mapping):
            offsets = {
                str(topic): {str(number): offset for number, offset in numbers.items()}
                for topic, numbers in start.items()
                if isinstance(numbers, Mapping)
            }
            given = [(number, offset) for numbers in offsets.values() for number, offset in numbers.items()]
            good = given and len(offsets) == len(start)
            if not good or not all(n.isdecimal() and type(offset) is int and offset >= -2 for n, offset in given):
                raise self._wrong(
                    f"start must be offsets by topic and partition: {{'orders': {{'0': 23}}}}; not {start!r}"
                )
            object.__setattr__(self, "start", offsets)
            return
        if start not in (EARLIEST, LATEST) and not (type(start) is int and start >= 0) and moment_ms(start) is None:
            raise self._wrong(
                f"start must be {EARLIEST!r}, {LATEST!r}, a moment with its offset from UTC ('2026-11-21T00:00:00Z', "
                f"or milliseconds since the epoch), or offsets by topic and partition; not {start!r}"
            )

    def _check_options(self) -> None:
        if not isinstance(self.options, Mapping):
            raise self._wrong(f"options must be a dict, not {self.options!r}")
        for key, value in self.options.items():
            if not isinstance(key, str) or not isinstance(value, (str, bool, int, float)):
                raise self._wrong(f"options: {key!r} must be a text, and its value a text, number or bool")
            refused = None if is_read_back() else refusal(key, value)
            if refused is None and key.lower().startswith(("kafka.sasl.", "kafka.ssl.", "kafka.security.")):
                refused = f"{key!r} is how the brokers are reached. Put that into the connection conn_id."
            if refused is not None and not is_read_back():
                raise self._wrong(f"options: {refused}")
            ours = _PLANNED_HERE.get(key.lower())
            if ours is not None:
                raise self._wrong(f"options: {key!r} is the plan's business; use the parameter {ours} of KafkaSource")

    def _check_text(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise self._wrong(f"{name} must be a text that is not empty, or None; not {value!r}")

    def _wrong(self, text: str) -> DefinitionError:
        return DefinitionError(f"KafkaSource: {text.removesuffix('.')}.")


def as_spark(value: str | bool | int | float) -> str:
    """Format the value of an option as Spark reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
