"""Marks that were lost are brought back, as an error says: behind those of later batches, which they must not hide."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.kafka.cluster import Topic
from airflow_provider_microbatch.sinks.kafka.mark import Mark, decode, encode
from airflow_provider_microbatch.sinks.kafka.marks import Marks
from airflow_provider_microbatch.sinks.manifest import Manifest

Record = tuple[BatchKey, bytes | None]


class Written(Marks):
    """The marks of a topic that is a list, and how many of them were read."""

    def __init__(self, log: list[Record], *, id: str = "m") -> None:
        cluster: Any = self
        access: Any = None
        super().__init__(cluster, access, topic="orders", name="marks", timeout=1, wait_seconds=1)
        self.log, self.id, self.read = log, id, 0

    def publish(self, lane: str, number: int) -> None:
        """As a publisher does: look, then write the mark."""
        key = BatchKey(lane, number)
        seen = self.look(key)
        mark = Mark(
            manifest=Manifest(key=key, epoch=1),
            top=max(seen.top, number),
            topic_id="a",
            behind=seen.end,
            marks_id=seen.marks_id,
        )
        self.log.append((key, encode(mark)))

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        return {name: Topic(name=name, id=self.id, partitions=(0,)) for name in names}

    def earliest(self, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(places, 0)

    def _settled_end(self) -> int:
        return len(self.log)

    def _read(self, lower: int, upper: int) -> Iterator[tuple[int, BatchKey, bytes | None]]:
        self.read += upper - lower
        return iter([(at, *self.log[at]) for at in range(lower, upper)])


@pytest.fixture
def log() -> list[Record]:
    """A thousand batches of the live lane, and then a backfill."""
    log = list[Record]()
    marks = Written(log)
    for number in range(1000):
        marks.publish("live", number)
    for number in range(70):
        marks.publish(f"interval-{number}", 0)
    return log


def bring_back(log: list[Record], numbers: Iterable[int]) -> None:
    for number in numbers:
        key, value = log[number]
        log[number] = key, None
        log.append((key, value))


@pytest.mark.parametrize("numbers", [[3], range(100), [998, 3]])
def test_a_mark_that_was_brought_back_hides_none(log: list[Record], numbers: Iterable[int]) -> None:
    bring_back(log, numbers)
    for number in (3, 500, 998, 999):
        seen = Written(log).look(BatchKey("live", number))
        assert (seen.mark is not None, seen.top) == (True, 999), number
    seen = Written(log).look(BatchKey("live", 1000))
    assert (seen.mark, seen.top) == (None, 999)
    assert Written(log).ids("live", above=997) == [998, 999]


def test_nor_does_it_once_the_next_one_is_published_again(log: list[Record]) -> None:
    bring_back(log, [3])
    Written(log).publish("live", 500)
    assert Written(log).look(BatchKey("live", 999)).mark is not None


def test_marks_that_were_copied_to_another_topic_say_nothing_of_its_offsets(log: list[Record]) -> None:
    copied = log[100:]  # compaction has removed records, say
    bring_back(copied, [850])
    for number in (950, 999):
        seen = Written(copied, id="another").look(BatchKey("live", number))
        assert (seen.mark is not None, seen.top) == (True, 999)


def test_one_that_was_brought_back_is_not_the_newest(log: list[Record]) -> None:
    """Whoever publishes next asks whether the topic is the one of the newest batch."""
    key, value = log[3]
    before = dataclasses.replace(decode(value, key, where="here"), topic_id="of before")
    log.append((key, encode(before)))
    assert Written(log).look(BatchKey("live", 1000)).topic_id == "a"


def test_as_long_as_none_is_brought_back_the_newest_are_found_by_one_read(log: list[Record]) -> None:
    log = log[:1000]
    for number, is_in in ((999, True), (1000, False), (950, True)):
        marks = Written(log)
        assert (marks.look(BatchKey("live", number)).mark is not None) is is_in
        assert marks.read <= 64
