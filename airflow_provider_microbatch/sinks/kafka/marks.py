"""The marks of batches: one small record each, in a compacted topic beside the topic, within the batch's transaction.

A look reads marks from the end backwards, until it finds the batch or knows that it is not there: each mark has the
highest number of its lane so far, and the marks of a lane are written by one producer at a time, so no mark of the
batch lies before one whose lane had not come so far. For the newest batches that is one read.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey, is_whole
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.kafka.access import Access
from airflow_provider_microbatch.kafka.cluster import Cluster, library
from airflow_provider_microbatch.sinks.manifest import Manifest

log = logging.getLogger(__name__)

SETTINGS = {"cleanup.policy": "compact"}
"""Of a topic of marks: nothing there may ever age out, or a batch that is in would be published again."""

_VERSION = 1
_LARGEST = 500_000
"""Bytes of a mark; brokers refuse a record of more than a megabyte."""
_FIRST_WINDOW, _GROWTH = 64, 8
_PAUSE = 0.05
_SAY_SECONDS = 5.0
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, DefinitionError)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """The record of a batch that is in a topic.

    :param manifest: what was published.
    :param top: the highest number of the batch's lane that the topic has, this one included.
    :param topic_id: id of the topic when the batch was published.
    :param offsets: by partition, between which offsets the batch's records lie: from the first, before the second.
    """

    manifest: Manifest
    top: int
    topic_id: str
    offsets: Mapping[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a look has found.

    :param mark: the newest mark of the batch; None if the batch is not in.
    :param top: the highest number of the batch's lane that is in; -1 for none.
    """

    mark: Mark | None
    top: int


def key_of(topic: str, key: BatchKey) -> bytes:
    """The key of a batch's mark."""
    return json.dumps([topic, key.lane, key.id]).encode()


def place_of(data: bytes | None) -> tuple[str, BatchKey] | None:
    """The topic and batch of a mark's key; None if it is the key of something else."""
    try:
        topic, lane, id = json.loads(data or b"")
        if isinstance(topic, str) and isinstance(lane, str) and is_whole(id):
            return topic, BatchKey(lane, id)
    except _UNREADABLE:
        pass
    return None


def encode(mark: Mark) -> bytes:
    """The value of a mark's record. A list of files that is too long for a record is left out: nobody needs it once
    the stage is sent."""
    manifest = mark.manifest
    values = {
        "version": _VERSION,
        "epoch": manifest.epoch,
        "identity": manifest.identity.to_dict() if manifest.identity else None,
        "top": mark.top,
        "topicId": mark.topic_id,
        "offsets": {str(partition): list(found) for partition, found in mark.offsets.items()},
        "result": dict(manifest.result),
    }
    whole = json.dumps({**values, "files": dict(manifest.files)}).encode()
    return whole if len(whole) <= _LARGEST else json.dumps({**values, "files": {}}).encode()


def decode(data: bytes | None, key: BatchKey, *, where: str) -> Mark:
    """The mark in a record.

    :param where: place of the record, for messages.
    :raises SinkError: if this package cannot have written it.
    """
    try:
        values = json.loads(data or b"")
        if values["version"] != _VERSION:
            raise ValueError(f"it is of version {values['version']!r:.20}")
        identity = BatchIdentity.from_dict(values["identity"]) if values["identity"] else None
        if identity is not None and identity.key != key:
            raise ValueError(f"it is batch {identity.key}'s")
        manifest = Manifest(
            key=key,
            epoch=_whole(values["epoch"]),
            identity=identity,
            files={str(name): _whole(size) for name, size in values["files"].items()},
            result=dict(values["result"]),
        )
        offsets = {int(one): (_whole(first), _whole(last)) for one, (first, last) in values["offsets"].items()}
        return Mark(manifest=manifest, top=_whole(values["top"]), topic_id=str(values["topicId"]), offsets=offsets)
    except _UNREADABLE as error:
        raise SinkError(
            f"{where} is no mark of batch {key} ({type(error).__name__}: {error}). Somebody else writes there, or a "
            "newer version of this package does; nothing was done."
        ) from error


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
        self._seen: dict[BatchKey, tuple[int, Seen]] = {}

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
            raise SinkError(
                f"the topic {self._name} is gone, which has a mark of each batch that {self._topic} has: without it "
                "nobody can tell which are in. Nothing was published; bring it back."
            )
        policy = self._cluster.settings(self._name).get("cleanup.policy", "")
        if policy != "compact":
            raise SinkError(
                f"the topic {self._name}, which has the marks of {self._topic}, has cleanup.policy={policy}: marks "
                "would age out of it, and batches be published again. Set cleanup.policy=compact there."
            )

    def look(self, key: BatchKey) -> Seen:
        """Look for a batch. There must be a topic of marks.

        :raises SinkError: if a transaction stays open there, so that it is not known what is in.
        """
        end = self._settled_end()
        known = self._seen.get(key)
        if known is not None and known[0] == end:
            return known[1]
        found = self._look(key, end)
        self._seen[key] = end, found
        return found

    def ids(self, lane: str, *, above: int = -1) -> list[int]:
        """Numbers under which batches of the lane are in, ascending; those at most ``above`` are left out."""
        found = set[int]()
        for window in self._windows(self._settled_end()):
            own = [(key, mark) for key, mark in window if key.lane == lane]
            found |= {key.id for key, _ in own if key.id > above}
            if any(mark.top <= above for _, mark in own):
                break
        return sorted(found)

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _look(self, key: BatchKey, end: int) -> Seen:
        top = None
        for window in self._windows(end):
            own = [(place, mark) for place, mark in window if place.lane == key.lane]
            if own and top is None:
                top = own[-1][1].top
            mark = next((mark for place, mark in reversed(own) if place == key), None)
            if mark is not None or any(mark.top < key.id for _, mark in own):
                return Seen(mark=mark, top=-1 if top is None else top)
        return Seen(mark=None, top=-1 if top is None else top)

    def _windows(self, end: int) -> Iterator[list[tuple[BatchKey, Mark]]]:
        """The topic's marks, the newest first in windows that grow; within a window the oldest first."""
        place = self._name, 0
        lowest, size, upper = self._cluster.earliest([place])[place], _FIRST_WINDOW, end
        while upper > lowest:
            lower = max(lowest, upper - size)
            yield list(self._read(lower, upper))
            upper, size = lower, size * _GROWTH

    def _read(self, lower: int, upper: int) -> Iterator[tuple[BatchKey, Mark]]:
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
                if place is not None and place[0] == self._topic and record.value() is not None:
                    where = f"offset {record.offset()} of {self._name}"
                    yield place[1], decode(record.value(), place[1], where=where)
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


def _whole(value: object) -> int:
    if not is_whole(value):
        raise ValueError(f"{value!r:.50} is no whole number")
    return value
