"""The marks of batches: one small record each, in a compacted topic beside the topic, within the batch's transaction.

A look reads marks from the end backwards, until it finds the batch or knows that it is not there: each mark says how
far its lane had come, and where the marks ended then, so no mark of a later batch lies before that. For the newest
batches that is one read; and who looks again reads what is new, or lies further back. The offset of a mark itself says
nothing: people bring back marks that were lost, behind those of later batches.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.kafka.access import Access
from airflow_provider_microbatch.kafka.cluster import Cluster, library
from airflow_provider_microbatch.sinks.kafka.mark import Mark, decode, place_of
from airflow_provider_microbatch.sinks.kafka.mark_index import Found, MarkIndex

log = logging.getLogger(__name__)

SETTINGS = {"cleanup.policy": "compact"}
"""Of a topic of marks: nothing there may ever age out, or a batch that is in would be published again."""

_FIRST_WINDOW, _GROWTH = 64, 8
_PAUSE = 0.05
_SAY_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a look has found.

    :param mark: the newest mark of the batch; None if the batch is not in.
    :param top: the highest number of the batch's lane that is in; -1 for none.
    :param topic_id: id of the topic that the lane's newest batch was published to; None if the lane has none.
    :param end: where the topic of the marks ended at the look.
    :param marks_id: id of that topic.
    """

    mark: Mark | None
    top: int
    topic_id: str | None = None
    end: int = 0
    marks_id: str | None = None


def gone(topic: str, name: str) -> str:
    """What is said where there is no topic of marks any more.

    :param topic: the topic that has the records.
    :param name: the topic that had the marks.
    """
    return f"the topic {name} is gone, which has a mark of each batch of {topic}. {without_marks(topic)}"


def without_marks(topic: str) -> str:
    """What there is to do where the marks of a topic are not at hand."""
    return (
        f"Without the marks nobody can tell which batches are in {topic}, and published again they would be in it "
        "twice. Bring the marks back, or name by marks= the topic that has them."
    )


class Marks:
    """The marks of one topic.

    :param topic: the topic that has the records.
    :param name: the topic that has the marks.
    :param wait_seconds: how long to wait for a transaction that is open there.
    """

    def __init__(
        self, cluster: Cluster, access: Access, *, topic: str, name: str, timeout: float, wait_seconds: float
    ) -> None:
        self._cluster, self._access = cluster, access
        self._topic, self._name = topic, name
        self._timeout, self._wait_seconds = timeout, wait_seconds
        self._consumer: Any = None
        self._index: MarkIndex | None = None

    def are_there(self) -> bool:
        """Whether there is a topic of marks."""
        return self._name in self._cluster.topics([self._name])

    def make(self, *, copies: int) -> None:
        """Make the topic of marks, unless it is there. Idempotent."""
        if not self.are_there():
            self._cluster.create(self._name, copies=copies, settings=SETTINGS)
            log.info("Made the topic %s, which has a mark of each batch of %s", self._name, self._topic)

    def check(self) -> None:
        """:raises SinkError: if there is no topic of marks, or one that they age out of."""
        if not self.are_there():
            raise SinkError(f"{gone(self._topic, self._name)} Nothing was published.")
        policy = self._cluster.settings(self._name).get("cleanup.policy", "")
        if policy != "compact":
            raise SinkError(
                f"the topic {self._name}, which has the marks of {self._topic}, has cleanup.policy={policy}: marks "
                "would age out of it, and batches be published again. Set cleanup.policy=compact there. What has aged "
                "out does not come back by that: a clear of its batch is refused, and `check --table` names it."
            )

    def look(self, key: BatchKey) -> Seen:
        """Look for a batch. There must be a topic of marks.

        :raises SinkError: if a transaction stays open there, so that it is not known what is in; or if a record at the
            batch's place, or behind all marks of its lane, is no mark.
        """
        index = self._read_on()
        while not index.knows(key) and self._read_back(index):
            pass
        top, topic_id = index.newest(key.lane)
        found = index.find(key)
        mark = None if found is None else self._mark(key, found)
        return Seen(mark=mark, top=top, topic_id=topic_id, end=index.upper, marks_id=index.id)

    def ids(self, lane: str, *, above: int = -1) -> list[int]:
        """Numbers under which batches of the lane are in, ascending; those at most ``above`` are left out."""
        index = self._read_on()
        while not index.is_whole(lane, above=above) and self._read_back(index):
            pass
        return index.ids(lane, above=above)

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _mark(self, key: BatchKey, found: Found) -> Mark | None:
        if found.error is not None:
            raise found.error
        if not found.is_there or found.mark is not None:
            return found.mark
        for offset, place, value in self._read(found.offset, found.offset + 1):
            if (offset, place) == (found.offset, key):
                return decode(value, key, where=f"offset {offset} of {self._name}")
        raise SinkError(
            f"the mark of batch {key} at offset {found.offset} of {self._name} was gone when it was read again: a "
            "later one has taken its place. Try again."
        )

    def _read_on(self) -> MarkIndex:
        """What is known of the marks, up to their end of now."""
        end = self._settled_end()
        if self._index is None or end < self._index.upper:
            found = self._cluster.topics([self._name]).get(self._name)
            self._index = MarkIndex(self._name, id=None if found is None else found.id, end=end)
        self._read_into(self._index, self._index.upper, end)
        self._index.upper = end
        return self._index

    def _read_back(self, index: MarkIndex) -> bool:
        """Read what lies before, in windows that grow. False if nothing does."""
        place = self._name, 0
        lowest = self._cluster.earliest([place])[place]
        size = max(_FIRST_WINDOW, (index.upper - index.lower) * (_GROWTH - 1))
        lower = max(lowest, index.lower - size)
        self._read_into(index, lower, index.lower)
        is_more = lower < index.lower
        index.lower = min(lower, index.lower)
        return is_more

    def _read_into(self, index: MarkIndex, lower: int, upper: int) -> None:
        for offset, key, value in self._read(lower, upper) if lower < upper else ():
            index.add(key, value, offset=offset)

    def _read(self, lower: int, upper: int) -> Iterator[tuple[int, BatchKey, bytes | None]]:
        """The records under keys of the topic's batches: offset, batch and value."""
        kafka = library()
        consumer = self._open()
        try:
            consumer.assign([kafka.TopicPartition(self._name, 0, lower)])
            while True:
                record = consumer.poll(self._timeout)
                if record is None:
                    raise SinkError(
                        f"no answer from {self._access.servers} in {self._timeout:g} seconds: the marks of "
                        f"{self._topic} cannot be read from {self._name}. May this user read there?"
                    )
                error = record.error()
                if error is not None and error.code() != kafka.KafkaError._PARTITION_EOF:
                    raise SinkError(f"the marks of {self._topic} cannot be read from {self._name}: {error.str()}.")
                if error is not None or record.offset() >= upper:
                    return
                place = place_of(record.key())
                if place is not None and place[0] == self._topic:
                    yield record.offset(), place[1], record.value()
        except kafka.KafkaException as error:
            told = error.args[0].str()
            raise SinkError(f"the marks of {self._topic} cannot be read from {self._name}: {told}.") from error

    def _settled_end(self) -> int:
        """The end of the marks, when no transaction is open before it. Behind an open one there may be marks that
        nobody is shown yet: a batch that is in would be taken for one that is not."""
        place = self._name, 0
        highest = self._cluster.highest([place])[place]
        began, said = time.monotonic(), False
        while (end := self._cluster.latest([place])[place]) < highest:
            waited = time.monotonic() - began
            if waited > self._wait_seconds:
                raise SinkError(
                    f"a transaction is open in {self._name} since before offset {highest}, so it is not known which "
                    f"batches are in {self._topic}. Brokers end a transaction after its timeout; try again then."
                )
            if waited > _SAY_SECONDS and not said:
                log.info("A transaction is open in %s: waiting for its end", self._name)
                said = True
            time.sleep(_PAUSE)
        return end

    def _open(self) -> Any:
        if self._consumer is None:
            settings = {
                "log_level": 2,
                **self._access.client,
                "group.id": "airflow-provider-microbatch",  # is asked for, and used for nothing
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,  # at the end of the marks there is nothing to wait for
            }
            self._consumer = library().Consumer(settings)
        return self._consumer
