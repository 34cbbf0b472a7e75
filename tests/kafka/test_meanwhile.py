"""What happens to a topic and its lane while a batch is about to be published, or is sent."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks.kafka.records import Record, records
from tests.kafka.topic import World, of
from tests.sinks.stages import EXPECTED, batch_of
from tests.support.kafka_stages import write_stage

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
