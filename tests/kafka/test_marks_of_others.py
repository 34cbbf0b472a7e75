"""Records under the key of a mark that are none: they stop the lane whose they are until they are put right, and no
other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import SinkError
from tests.execution.maintaining import filled
from tests.kafka.pipeline import TopicWorld
from tests.support.kafka_stages import read

pytestmark = pytest.mark.slow

NO_MARK = b"not ours"


@pytest.fixture
def world(tmp_path: Path) -> TopicWorld:
    """Three batches of one row each, and a row that has landed since."""
    world = filled(TopicWorld(tmp_path), 3)
    world.land(3)
    return world


def key(world: TopicWorld, id: int, *, lane: str = "live") -> bytes:
    return json.dumps([world.topic, lane, id]).encode()


def refused(world: TopicWorld, batch: str) -> str:
    with pytest.raises(SinkError, match=f"is no mark of batch {batch} ") as error:
        world.run(3)
    assert world.ids() == [0, 1, 2]
    return str(error.value)


def goes_on(world: TopicWorld) -> bool:
    world.run(4)
    return world.ids() == [0, 1, 2, 3]


def test_a_mark_that_was_overwritten_is_put_right_by_writing_it_again(world: TopicWorld) -> None:
    (mark,) = (one for one in read(world.marks, partitions=1) if one.key == key(world, 2))
    world.put_marks([(mark.key, NO_MARK)])
    told = refused(world, "live/2")
    assert "What is written later under the same key takes its place: the mark, if the batch is in" in told
    world.put_marks([(mark.key, mark.value)])
    assert goes_on(world)


def test_what_is_no_mark_and_of_no_batch_is_put_right_by_a_record_without_a_value(world: TopicWorld) -> None:
    world.put_marks([(key(world, 7), NO_MARK)])
    assert "else a record without a value" in refused(world, "live/7")
    world.put_marks([(key(world, 7), None)])
    assert goes_on(world)


def test_what_is_no_mark_in_one_lane_stops_no_other(world: TopicWorld) -> None:
    world.put_marks([(key(world, 0, lane="interval-a"), NO_MARK)])
    assert goes_on(world)
