"""One transaction of a producer, which brings a batch's records and its mark, or nothing.

All publishers of a lane of a topic have one transactional id. Beginning fences the one before: the broker ends its open
transaction, and refuses its commit. So a publisher that has begun, and then finds the batch not in, can commit only if
nobody has begun since: two attempts cannot both publish.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.kafka.access import Access
from airflow_provider_microbatch.kafka.cluster import library
from airflow_provider_microbatch.sinks.kafka.records import Record

if TYPE_CHECKING:
    from airflow_provider_microbatch.sinks.kafka import KafkaSink

log = logging.getLogger(__name__)

_SAY_SECONDS = 10.0
_ROWS_BETWEEN_POLLS = 500
_CONNECT_SECONDS = 2.0
_END_SECONDS = 3.0
"""A task that is told to stop has few seconds, and may not reach the brokers."""
_NOT_TAKEN = "The brokers did not take a record: it may be larger than max.message.bytes of the topic."


class FencedError(Exception):
    """Another publisher of the lane has begun, or the brokers have ended the transaction for its age. Whether a commit
    was done before, only a look tells.

    :param late: what to raise if it was not, and the transaction was too old; None for one that was not.
    """

    def __init__(self, told: str, *, late: SinkError | None) -> None:
        super().__init__(told)
        self.late = late


class Transaction:
    """:param sink: the definition.
    :param lane: the lane whose other publishers are fenced.
    :param what: name of the publish, for messages.
    """

    def __init__(self, sink: KafkaSink, access: Access, *, lane: str, what: str) -> None:
        self._sink, self._access, self._what = sink, access, what
        self._lane = lane
        self._producer: Any = None
        self._began = 0.0

    @property
    def id(self) -> str:
        """The transactional id."""
        return "/".join(("microbatch", self._sink.marks_topic, self._sink.topic, self._lane))

    @contextmanager
    def fencing(self) -> Iterator[Transaction]:
        """Fence all other publishers of the lane; at the end abort what was not committed.

        :raises SinkError: naming what the brokers refuse.
        :raises FencedError: if another publisher has begun since, in anything that is called in the block.
        """
        kafka = library()
        try:
            with self._reporting("begin to publish"):
                self._producer = kafka.Producer(self._settings())
                self._connect()
                self._again(lambda: self._producer.init_transactions(self._sink.timeout), seconds=self._sink.timeout)
            yield self
        finally:
            self._end()

    def send(self, records: Iterable[Record], *, rows: int, partitions: int) -> None:
        """Begin the transaction and send the records, in their order in each partition.

        :param rows: how many there are.
        :param partitions: how many partitions the topic has.
        """
        with self._reporting("send records of"):
            self._producer.begin_transaction()
        self._began = said = time.monotonic()
        topic, sent = self._sink.topic, 0

        def rate() -> str:
            return f"{sent / max(time.monotonic() - self._began, 1e-3):,.0f} a second"

        for record in records:
            if not -1 <= record.partition < partitions:
                raise SinkError(
                    f"row {record.row:,} of {self._what} goes to partition {record.partition}, and {self._sink.topic} "
                    f"has {partitions}, counted from 0. Nothing was published; mend the column partition."
                )
            self._produce(topic, record)
            sent += 1
            if sent % _ROWS_BETWEEN_POLLS == 0:
                self._poll(0)
                if time.monotonic() - said >= _SAY_SECONDS:
                    said = time.monotonic()
                    log.info("%s: %s of %s records sent, %s", self._what, f"{sent:,}", f"{rows:,}", rate())
        self._flush()
        log.info("%s: %s records sent, %s", self._what, f"{sent:,}", rate())

    def mark(self, *, key: bytes, value: bytes) -> None:
        """Send the batch's mark. It comes last: a transaction that is open in the topic of the marks keeps everybody
        from knowing what is in."""
        self._produce(self._sink.marks_topic, Record(row=None, key=key, value=value, headers=[], partition=0))
        self._flush()

    def commit(self) -> None:
        """Commit. :raises SinkError: if the brokers do not answer: the batch may be in then, and the next try finds
        out."""
        kafka = library()
        try:
            self._again(
                lambda: self._producer.commit_transaction(self._sink.timeout), seconds=self._sink.transaction_seconds
            )
        except kafka.KafkaException as error:
            told = error.args[0]
            if told.code() in _fenced_codes() or told.txn_requires_abort():
                raise self._error(told, "commit") from error
            raise SinkError(
                f"{self._what}: it is not known whether it was committed (brokers {self._access.servers}): "
                f"{told.str()}. Try again: the next try finds out, and publishes it if it was not."
            ) from error
        self._began = 0.0

    def _connect(self) -> None:
        """Have the client reach a broker: if it has no connection when it begins, it waits for half a second."""
        # The first answer may come by the address that the user has written, whose connection ends then. Brokers that
        # cannot be reached are told of by what is asked of them next.
        with suppress(library().KafkaException):
            for _ in range(2):
                self._producer.list_topics(self._sink.topic, timeout=min(_CONNECT_SECONDS, self._sink.timeout))

    def _produce(self, topic: str, record: Record) -> None:
        # No function hears deliveries: the client calls it behind an error that ends the producer, and Python's own
        # state is broken then. Of a record that was not taken, the commit tells.
        while True:
            try:
                self._producer.produce(topic, record.value, record.key, record.partition, headers=record.headers)
                return
            except BufferError:
                # The client holds as many records as it may: the brokers are slower than the files.
                self._poll(0.1)
            except library().KafkaException as error:
                raise self._error(self._cause(error.args[0]), "send", record.row) from error

    def _poll(self, seconds: float) -> None:
        with self._reporting("send"):
            self._producer.poll(seconds)
        self._check_in_time()

    def _flush(self) -> None:
        with self._reporting("send"):
            while self._producer.flush(1.0):
                self._check_in_time()

    def _check_in_time(self) -> None:
        if self._is_late:
            raise self._late()

    @property
    def _is_late(self) -> bool:
        return bool(self._began) and time.monotonic() - self._began > self._sink.transaction_seconds

    def _again(self, call: Callable[[], object], *, seconds: float) -> None:
        """Call until it is answered: a call that has timed out goes on when it is called again."""
        kafka, until = library(), time.monotonic() + seconds
        while True:
            try:
                call()
                return
            except kafka.KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > until:
                    raise

    @contextmanager
    def _reporting(self, doing: str) -> Iterator[None]:
        """Raise errors of the client as what they mean."""
        kafka = library()
        try:
            yield
        except kafka.KafkaException as error:
            raise self._error(self._cause(error.args[0]), doing) from error

    def _cause(self, told: Any) -> Any:
        """What has ended the client, where an error tells no more than that something has: mostly another publisher."""
        kafka = library()
        if told.code() == kafka.KafkaError._FATAL and self._producer is not None:
            try:
                self._producer.flush(0)
            except kafka.KafkaException as error:
                return error.args[0]
        return told

    def _error(self, told: Any, doing: str, row: int | None = None) -> Exception:
        late = self._late() if self._is_late else None
        if told.code() in _fenced_codes():
            return FencedError(told.str(), late=late)
        if late is not None:
            return late
        what = self._what if row is None else f"row {row:,} of {self._what}"
        return SinkError(
            f"cannot {doing} {what} (brokers {self._access.servers}): {told.str()}.{_remedy(told.code())}"
        )  # fmt: skip

    def _late(self) -> SinkError:
        return SinkError(
            f"{self._what}: it took longer than transaction_seconds={self._sink.transaction_seconds:g}, after which "
            "the brokers end a transaction. Nothing was published. Raise it, up to the brokers' "
            "transaction.max.timeout.ms, or make smaller batches."
        )

    def _end(self) -> None:
        """Abort what is open: consumers would wait for it until it times out."""
        if self._producer is None:
            return
        if self._began:
            try:
                self._producer.abort_transaction(_END_SECONDS)
            except Exception as error:
                log.debug("%s: its transaction could not be aborted, and ends by its timeout: %s", self._what, error)
        self._producer = None

    def _settings(self) -> Mapping[str, Any]:
        return {
            "log_level": 0,
            # A key leads to the partition that it leads to from Kafka's Java client, and from Spark.
            "partitioner": "murmur2_random",
            "queue.buffering.max.kbytes": 65_536,
            **self._access.client,
            **self._sink.options,
            "enable.idempotence": True,
            "acks": "all",
            "transactional.id": self.id,
            "transaction.timeout.ms": round(self._sink.transaction_seconds * 1000),
        }


def _remedy(code: int) -> str:
    error = library().KafkaError
    remedies = {
        error.MSG_SIZE_TOO_LARGE: "Raise max.message.bytes of the topic and message.max.bytes in the sink's options.",
        error._INCONSISTENT: _NOT_TAKEN,
        error._STATE: _NOT_TAKEN,
        error.TOPIC_AUTHORIZATION_FAILED: "Grant the user WRITE on the topic, and on that of the marks.",
        error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Grant WRITE on transactional ids beginning with microbatch/.",
        error.INVALID_TRANSACTION_TIMEOUT: "Lower transaction_seconds, or raise transaction.max.timeout.ms.",
    }
    found = remedies.get(code)
    return f" {found}" if found else ""


def _fenced_codes() -> tuple[int, ...]:
    error = library().KafkaError
    return (
        error._FENCED,
        error.PRODUCER_FENCED,
        error.INVALID_PRODUCER_EPOCH,
        error.INVALID_PRODUCER_ID_MAPPING,
    )
