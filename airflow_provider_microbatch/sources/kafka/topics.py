"""The topics that a source reads, checked to be those of the first plan.

A topic that is removed and created again under its name has other records under the same offsets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from shlex import quote
from typing import Any

from airflow_provider_microbatch.exceptions import CorruptEntryError, SourceChangedError, SourceError
from airflow_provider_microbatch.kafka.cluster import Cluster, Partition, Position, Topic
from airflow_provider_microbatch.sources.kafka import KafkaSource
from airflow_provider_microbatch.stores import Store

_ENTRY = "topics"


def partitions_of(topics: Iterable[Topic]) -> list[Partition]:
    """All partitions of the topics, in order."""
    return sorted((topic.name, number) for topic in topics for number in topic.partitions)


def first_seen(
    topics: Collection[Topic], known: Position, earliest: Mapping[Partition, int]
) -> dict[Partition, int]:  # fmt: skip
    """The beginning of topics that no position has had yet: earlier records were never promised to be read."""
    had = {topic for topic, _ in known}
    return {one: earliest[one] for one in partitions_of(topics) if one[0] not in had}


class Topics:
    """:param source: the definition, which names the topics.
    :param name: name of the source, for messages.
    :param cluster: returns the cluster of the topics.
    :param state: the source's own state.
    :param checkpoint: address of the checkpoint, for messages.
    """

    def __init__(
        self, source: KafkaSource, *, name: str, cluster: Callable[[], Cluster], state: Store, checkpoint: str
    ) -> None:
        self._source = source
        self._name = name
        self._cluster = cluster
        self._state = state
        self._checkpoint = checkpoint
        self._records: dict[str, Any] | None = None
        self._version: str | None = None

    def now(self) -> dict[str, Topic]:
        """The topics that the definition selects, as they are now, with the selected partitions. Writes nothing.

        :raises SourceError: if a named topic does not exist, or is not the one that it was.
        """
        found = self._cluster().topics(self._selected())
        missing = [name for name in self._source.names if name not in found]
        if missing:
            raise SourceError(
                f"source {self._name!r}: topic {', '.join(map(repr, missing))} does not exist, or this user may not "
                f"see it, at {self._source.location()}. Create it, correct the name, or give the right."
            )
        self._check(found.values())
        return {name: self._meant(topic) for name, topic in found.items()}

    def check(self, names: Iterable[str]) -> None:
        """:raises SourceChangedError: if one of the topics is gone, or is not the one that it was. Writes nothing."""
        found = self._cluster().topics(set(names))
        gone = sorted(set(names) - found.keys())
        if gone:
            raise SourceChangedError(
                f"source {self._name!r}: topic {', '.join(map(repr, gone))} is gone from {self._source.location()}, "
                "and with it what was planned of it."
            )
        self._check(found.values())

    def gone(self, names: Collection[str]) -> list[str]:
        """Those of the topics that do not exist."""
        return sorted(set(names) - self._cluster().topics(names).keys())

    def is_as_it_was(self, topic: Topic) -> bool:
        """Whether the topic is the one that was planned, and not another one of its name."""
        recorded = self._recorded().get(topic.name)
        return recorded is None or bool(recorded["id"] == topic.id)

    def pin(self, topics: Collection[Topic], begin: Callable[[Collection[Topic]], Position]) -> None:
        """Put on record the id of each topic that is not on record yet, and where it begins. Durable on return,
        idempotent.

        :param begin: returns where topics begin that are seen for the first time.
        """
        while new := [topic for topic in topics if topic.name not in self._recorded()]:
            offsets = begin(new)
            for topic in new:
                own = {str(number): at for (name, number), at in offsets.items() if name == topic.name}
                self._recorded()[topic.name] = {"id": topic.id, "begin": own}
            data = json.dumps(self._recorded(), separators=(",", ":")).encode()
            version = self._version
            self._records = None  # the entry is read again after this put
            if version is None:
                self._state.put_if_absent(_ENTRY, data)
            else:
                self._state.compare_and_put(_ENTRY, data, version=version)
        self._check(topics)

    def was_planned(self, topic: str) -> bool:
        """Whether a topic of this name is on record."""
        return topic in self._recorded()

    def from_(self, position: Position, partition: Partition) -> int:
        """The offset from which a partition is read. One that the position does not have begins where it was when its
        topic was first seen; if it came later, at its first record ever."""
        if (at := position.get(partition)) is not None:
            return at
        recorded = self._recorded().get(partition[0])
        return 0 if recorded is None else int(recorded["begin"].get(str(partition[1]), 0))

    def _meant(self, topic: Topic) -> Topic:
        wanted = self._source.partitions.get(topic.name)
        if wanted is None:
            return topic
        missing = sorted(set(wanted) - set(topic.partitions))
        if missing:
            raise SourceError(
                f"source {self._name!r}: topic {topic.name!r} has no partition {', '.join(map(str, missing))}; it has "
                f"{len(topic.partitions)}."
            )
        return Topic(name=topic.name, id=topic.id, partitions=tuple(wanted))

    def made_again(self) -> str | None:
        """What was removed and made again of the topics that are on record and still selected, with the way on; None if
        nothing was."""
        found = self._cluster().topics(self._recorded().keys() & set(self._selected())) if self._recorded() else {}
        return next((self._made_again(topic) for topic in found.values() if not self.is_as_it_was(topic)), None)

    def _selected(self) -> Collection[str]:
        pattern = self._source.pattern
        return self._source.names if pattern is None else self._cluster().topics_like(pattern)

    def _check(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            if not self.is_as_it_was(topic):
                raise SourceChangedError(f"source {self._name!r}: {self._made_again(topic)}")

    def _made_again(self, topic: Topic) -> str:
        new = f"{self._name}_2"
        # A source of a new name reads all that it selects: topics that stay must not be among that.
        beside = (
            f"Leave it out of {self._name!r}, which goes on with its other topics, and read the new one, alone,"
            if len(self._recorded()) > 1
            else "Read the new one"
        )
        return (
            f"topic {topic.name!r} at {self._source.location()} was removed and made again: it was "
            f"{self._recorded()[topic.name]['id']}, and is {topic.id}. Its offsets count from 0 again, so nothing that "
            f"was planned of it can be read. {beside} as a source of a name that was never used: give it that "
            f"name in the pipeline, such as {new!r}, and say that it is new: `microbatch add-source "
            f"{quote(self._checkpoint)} {quote(new)}`."
        )

    def _recorded(self) -> dict[str, Any]:
        if self._records is None:
            found = self._state.get_versioned(_ENTRY)
            self._version = None if found is None else found.version
            self._records = {} if found is None else self._read(found.data)
        return self._records

    def _read(self, data: bytes) -> dict[str, Any]:
        try:
            return {
                str(topic): {"id": str(one["id"]), "begin": {str(n): int(at) for n, at in one["begin"].items()}}
                for topic, one in json.loads(data).items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptEntryError(
                f"{self._state.location}/{_ENTRY} is torn: {error!r}. Restore it from a backup of the checkpoint."
            ) from error
