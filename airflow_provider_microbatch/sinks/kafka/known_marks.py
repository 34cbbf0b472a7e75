"""Which topic of marks belongs to a topic, by the checkpoint's record.

A look that finds no mark says that a batch is not in: true of the topic that has the marks, and of no other. One that
was removed and made again, or another name by ``marks=``, would have everything published once more. So a checkpoint
has the id of the topic of the marks on record from its first attempt on, and nobody makes another one beside it.

The record is for the topic's own id: a topic that was removed and made again has nothing, and new marks are its own.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.kafka.cluster import Cluster, Topic
from airflow_provider_microbatch.sinks.kafka.marks import gone, without_marks

if TYPE_CHECKING:
    from airflow_provider_microbatch.sinks.kafka import KafkaSink


class KnownMarks:
    """:param sink: the definition."""

    def __init__(self, sink: KafkaSink, cluster: Cluster) -> None:
        self._sink, self._cluster = sink, cluster

    def are_there(self, tables: KnownTables) -> bool:
        """Whether there is a topic of marks to be asked.

        :param tables: the checkpoint's knowledge of its tables.
        :raises SinkError: if the checkpoint knows of one, and it is gone, or another one is in its place.
        """
        topic, marks = self._look()
        away = self._away(tables, topic, marks)
        if away is not None:
            raise SinkError(f"{away} Nothing was published.")
        return marks is not None

    def away(self, tables: KnownTables) -> str | None:
        """Why there is no asking the topic of the marks that the checkpoint knows, and what to do; None if there is."""
        return self._away(tables, *self._look())

    def is_known(self, tables: KnownTables, *, at: str | None = None) -> bool:
        """Whether the checkpoint has published to this very topic: it has the id of its marks on record.

        :param at: the address by which it was published to; None: the one of now.
        """
        topic, _ = self._look()
        return topic is not None and tables.get(self._place(topic, at=at)) is not None

    def make_known(self, tables: KnownTables, *, is_there: Callable[[], bool]) -> None:
        """Have the checkpoint know the topic of the marks by its id from now on.

        :param is_there: whether the newest batch that was published is known there.
        :raises SinkError: if it is not.
        """
        topic, marks = self._look()
        if topic is None or marks is None or tables.get(self._place(topic)) is not None:
            return
        if not is_there():
            told = f"the topic {marks.name} has no mark of the newest batch that was published to {topic.name}."
            raise SinkError(f"{told} {without_marks(topic.name)} Nothing was published.")
        tables.put(self._place(topic), _hex(marks.id))

    def _look(self) -> tuple[Topic | None, Topic | None]:
        names = self._sink.topic, self._sink.marks_topic
        found = self._cluster.topics(names)
        return found.get(names[0]), found.get(names[1])

    def _away(self, tables: KnownTables, topic: Topic | None, marks: Topic | None) -> str | None:
        known = None if topic is None else tables.get(self._place(topic))
        if topic is None or known is None or (marks is not None and _hex(marks.id) == known):
            return None
        if marks is None:
            return gone(topic.name, self._sink.marks_topic)
        return (
            f"the topic {marks.name} is another one than the topic that has a mark of each batch of {topic.name}: that "
            f"was removed and made again, or marks= names another. {without_marks(topic.name)} If this one has all "
            f"marks of that (it was restored, or copied), remove {tables.where_of(self._place(topic))}: the next run "
            "looks for the newest batch here, and knows this topic from then on."
        )

    def _place(self, topic: Topic, *, at: str | None = None) -> str:
        return f"{at or self._sink.location()}#{topic.id}"


def _hex(id: str) -> str:
    """A topic's id, in the form of a table's."""
    return base64.urlsafe_b64decode(f"{id}==").hex()
