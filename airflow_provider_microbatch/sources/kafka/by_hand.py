"""Positions that people give: errors name them, ``microbatch set-offset`` takes them.

A position never drops what is not selected today. A topic, or a partition, that is named again goes on where it was:
without its place it would begin where it began at first, and be read twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.kafka.cluster import Cluster, Position, named
from airflow_provider_microbatch.sources.kafka.offsets import render
from airflow_provider_microbatch.sources.kafka.topics import Topics, partitions_of


class ByHand:
    """:param topics: of the source.
    :param cluster: returns the cluster of the topics.
    """

    def __init__(self, topics: Topics, *, cluster: Callable[[], Cluster]) -> None:
        self._topics = topics
        self._cluster = cluster

    def inside(self, position: Position, *, without: Collection[str] = ()) -> Offset:
        """The position that is closest to ``position``, of those that all selected partitions have today.

        :param without: topics that are given up.
        """
        partitions = partitions_of(self._topics.now().values())
        earliest, highest = self._cluster().earliest(partitions), self._cluster().highest(partitions)
        here = {
            one: min(max(self._topics.from_(position, one), earliest[one]), highest[one]) for one in partitions
        }  # fmt: skip
        return render({one: at for one, at in {**position, **here}.items() if one[0] not in without})

    def check(self, position: Position, *, location: str) -> None:
        """Check that a position names all selected partitions, offsets that they have, and besides these only
        partitions that the topics have, or that are gone with a topic that was read.

        :param location: of the source, for messages.
        :raises SourceError: if it does not.
        """
        meant = partitions_of(self._topics.now().values())
        there = self._cluster().topics({topic for topic, _ in position})
        strange = [
            (topic, number)
            for topic, number in position
            if not (number in there[topic].partitions if topic in there else self._topics.was_planned(topic))
        ]
        if strange or set(meant) - set(position):
            besides = f" There is no {', '.join(map(named, strange))}." if strange else ""
            raise SourceError(
                f"{render(position)} is no position of {location}, which has an offset for each of "
                f"{', '.join(map(named, meant))}.{besides}"
            )
        earliest, latest = self._cluster().earliest(meant), self._cluster().highest(meant)
        for one in meant:
            if not earliest[one] <= position[one] <= latest[one]:
                raise SourceError(
                    f"{named(one)} has offsets from {earliest[one]} to {latest[one]}, and not {position[one]}."
                )

    def is_after(self, one: Position, two: Position) -> bool | None:
        """Whether ``one`` is ahead in some partition and behind in none; None if it is also behind in another, or if a
        topic that only ``two`` has is gone: whether records lay behind its place nobody knows. One that only ``one``
        has counts as given up: nothing of it is ever read from ``two`` on."""
        lone = {topic for topic, _ in one} ^ {topic for topic, _ in two}
        gone = set(self._topics.gone(lone)) if one and two and lone else set[str]()
        if any(topic in gone for topic, _ in two):
            return None
        keys = [key for key in {*one, *two} if key[0] not in gone]
        further = [self._topics.from_(one, key) - self._topics.from_(two, key) for key in keys]
        ahead, behind = any(by > 0 for by in further), any(by < 0 for by in further)
        return None if ahead and behind else ahead
