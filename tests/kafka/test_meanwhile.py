"""What happens to a topic and its lane while a batch is about to be published, or is sent."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.kafka.opened import OpenKafka
from airflow_provider_microbatch.sinks.kafka.records import Record, records
from tests.kafka.topic import World, of
from tests.sinks.stages import EXPECTED, batch_of, expect
from tests.support import kafka
from tests.support.kafka_stages import read, write_stage

pytestmark = pytest.mark.slow

MOST = 2_000_000
"""Records that a client would have to take before it hears that it is fenced."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World.make(tmp_path)


def at_first_record(monkeypatch: pytest.MonkeyPatch, happen: Callable[[], object], *, until_refused: bool) -> None:
    """Something happens when the first record of a batch is sent; the batch is then as long as it takes to hear of
    it."""
    place = "airflow_provider_microbatch.sinks.kafka.opened.records"

    def sent(*given: Any, **more: Any) -> Iterator[Record]:
        monkeypatch.setattr(place, records)
        found = records(*given, **more)
        first = next(found)
        yield first
        happen()
        yield from itertools.repeat(first, MOST) if until_refused else found

    monkeypatch.setattr(place, sent)


def has_all_in_its_mark(sink: OpenKafka, world: World, *, partitions: int) -> bool:
    """Whether who reads by the mark gets each record."""
    mark = sink._marks.look(EXPECTED.key).mark
    assert mark is not None
    found = read(world.topic, partitions=partitions)
    assert found
    assert set(mark.offsets) == set(range(partitions))
    return all(mark.offsets[one.partition][0] <= one.offset < mark.offsets[one.partition][1] for one in found)


def test_a_stage_that_is_dropped_in_the_lane_while_records_are_sent_costs_one_more_try(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, other = world.sink(), batch_of(BatchKey("live", 6))
    write_stage(sink, 1, rows=3)
    write_stage(sink, 1, batch=other)
    at_first_record(monkeypatch, lambda: world.sink().drop_stage(other, 1), until_refused=True)
    assert sink.publish(EXPECTED, 1).epoch == 1
    assert of(world.records(), "microbatch-row").count("0") == 1
    assert len(world.records()) == 3


def test_partitions_that_come_before_a_publish_are_in_its_mark(world: World) -> None:
    sink = world.sink()
    sink.check()
    write_stage(sink, 1, rows=50)
    kafka.running().grow(world.topic, 5)
    sink.publish(EXPECTED, 1)
    assert has_all_in_its_mark(sink, world, partitions=5)


def test_partitions_that_come_while_records_are_sent_are_in_its_mark(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = world.sink()
    write_stage(sink, 1, rows=50)
    at_first_record(monkeypatch, lambda: kafka.running().grow(world.topic, 5), until_refused=False)
    sink.publish(EXPECTED, 1)
    assert has_all_in_its_mark(sink, world, partitions=5)


@pytest.mark.parametrize("is_opened_anew", [False, True], ids=["the same task", "a task of its own"])
def test_a_topic_that_is_made_again_before_a_publish_gets_nothing(world: World, is_opened_anew: bool) -> None:
    sink, after = world.sink(), expect(BatchKey("live", 8))
    write_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    write_stage(sink, 1, batch=after.identity)
    kafka.running().remove(world.topic)
    kafka.running().topic(name=world.topic, partitions=2)
    with pytest.raises(SinkError, match=f"{world.topic} was removed and made again .*Nothing was published"):
        (world.sink() if is_opened_anew else sink).publish(after, 1)
    assert world.records() == []


def test_a_topic_that_is_made_again_while_the_first_batch_runs_is_not_taken_for_the_one_before(world: World) -> None:
    sink = world.sink()
    write_stage(sink, 1)
    kafka.running().remove(world.topic)
    kafka.running().topic(name=world.topic, partitions=2)
    with pytest.raises(SinkError, match=f"{world.topic} was removed and made again .*Run the batch again"):
        sink.publish(EXPECTED, 1)
    assert world.sink().publish(EXPECTED, 1).epoch == 1
    assert world.sink().contains(EXPECTED) is not None
