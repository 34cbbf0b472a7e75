"""The topic of the marks is lost, or another one is named: what is in a topic is not published there again."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import BatchSetAsideError, MicroBatchError, SinkError, TransformError
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.kafka import marks as module
from airflow_provider_microbatch.sinks.kafka.mark import key_of
from airflow_provider_microbatch.upkeep.commands.set_offset import plan_set_offset
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.maintaining import applied, filled, rewind
from tests.execution.test_dead_letters import refusing
from tests.execution.test_letters_once import ids
from tests.execution.test_set_aside import broken
from tests.kafka.pipeline import TopicWorld, beside_a_table
from tests.support import kafka
from tests.support.kafka_stages import read

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path) -> TopicWorld:
    """Three batches of one row each, and a row that has landed since."""
    world = filled(TopicWorld(tmp_path), 3)
    world.land(3)
    return world


def stands_still(world: TopicWorld, told: str) -> None:
    """No run, no clear and no command publishes anything, and each says the same."""
    for number, clear_number in ((3, 0), (0, 1), (2, 1)):
        with pytest.raises(SinkError, match=told):
            world.run(number, clear_number=clear_number)
    world.expire_leases()
    with pytest.raises(MicroBatchError, match=told):
        applied(world, rewind(-1))
    (finding, *_) = check_table(world.checkpoint, everything=True).findings
    assert told in finding.message
    assert "back" in finding.repair
    assert world.ids() == [0, 1, 2]


def test_nothing_is_published_without_the_marks_of_what_is_in(world: TopicWorld) -> None:
    kafka.running().remove(world.marks)
    stands_still(world, f"the topic {world.marks} is gone, which has a mark of each batch")
    assert world.marks not in kafka.running().admin().list_topics(timeout=30).topics


def test_marks_that_were_made_again_by_hand_are_not_those_of_before(world: TopicWorld) -> None:
    kafka.running().remove(world.marks)
    kafka.running().topic(name=world.marks, config=module.SETTINGS)
    stands_still(world, f"the topic {world.marks} is another one than the topic that has a mark of each batch")


def test_marks_that_were_restored_under_another_id_are_known_again_when_somebody_says_so(world: TopicWorld) -> None:
    kept = read(world.marks, partitions=1)
    kafka.running().remove(world.marks)
    kafka.running().topic(name=world.marks, config=module.SETTINGS)
    world.put_marks((mark.key, mark.value) for mark in kept)
    with pytest.raises(SinkError, match="is another one than the topic that has a mark of each batch") as refused:
        world.run(3)
    (entry,) = re.findall(r"remove (/\S+/microbatch/tables/[0-9a-f]{64}):", str(refused.value))
    Path(entry).unlink()
    world.run(3)
    world.run(4)
    assert world.ids() == [0, 1, 2, 3]
    kafka.running().remove(world.marks)
    with pytest.raises(SinkError, match="is gone, which has a mark of each batch"):
        world.run(5)


@pytest.mark.parametrize("is_known", [True, False], ids=["known by its id", "known by its marks"])
def test_a_mark_that_was_lost_alone_is_no_sign_that_its_records_are(world: TopicWorld, is_known: bool) -> None:
    world.put_marks([(key_of(world.topic, BatchKey("live", 2)), None)])
    if not is_known:
        for entry in (world.root / "checkpoint" / "microbatch" / "tables").iterdir():
            entry.unlink()
    told = f"batch live/2 is committed.*has no mark of .*{world.topic} is the very topic that it was published to"
    with pytest.raises(SinkError, match=told) as refused:
        world.run(3)
    assert "--drop-output" not in str(refused.value)
    with pytest.raises(SinkError, match="has no mark of"):
        world.run(2, clear_number=1)
    (finding, *_) = check_table(world.checkpoint, everything=True).findings
    assert re.search(told, finding.message)
    assert world.ids() == [0, 1, 2]


def test_what_has_lost_its_mark_is_gone_over_by_rewind_and_set_offset(world: TopicWorld) -> None:
    world.put_marks([(key_of(world.topic, BatchKey("live", 2)), None)])
    with pytest.raises(SinkError, match=r"`microbatch rewind \S+ --to 1`.*set-offset.* --allow-skip"):
        world.run(3)
    world.expire_leases()
    applied(world, rewind(1, drop_output=False))
    behind = partial(plan_set_offset, lane="live", source="orders", offset='{"logOffset":2}')
    applied(world, partial(behind, allow_skip=True, allow_reread=False))
    world.run(4)
    world.run(5)
    assert world.ids() == [0, 1, 2, 3]


@pytest.mark.parametrize("first", ["files", "topic"])
@pytest.mark.parametrize("way", ["a new topic", "one batch without it"])
def test_beside_a_table_no_rewind_is_named_and_the_ways_that_are_lead_on(tmp_path: Path, first: str, way: str) -> None:
    """The batch stays in the table without --drop-output, and nothing brings it back there with it."""
    world = TopicWorld(tmp_path)
    world.options["sink"] = both = beside_a_table(world, first=first)
    filled(world, 3)
    world.land(3)
    world.put_marks([(key_of(world.topic, BatchKey("live", 2)), None)])
    with pytest.raises(SinkError, match=r"go on with a new topic; or leave \S+ out of the pipeline") as refused:
        world.run(3)
    assert "`microbatch rewind" not in str(refused.value)
    world.expire_leases()
    with pytest.raises(MicroBatchError, match="go on with a new topic"):
        applied(world, rewind(1))
    if way == "a new topic":
        world.topic = kafka.running().topic(partitions=2)
        world.name_sink()
        world.options["sink"] = beside_a_table(world, first=first)
        world.run(4)
    else:
        world.options["sink"] = both.sinks["files"]
        world.run(4)
        world.options["sink"] = both
    world.land(4)
    world.run(5)
    assert ids(world) == [0, 1, 2, 3, 4]
    assert world.ids() == ([3, 4] if way == "a new topic" else [0, 1, 2, 4])


def test_for_dead_letters_another_table_is_named_for_one_batch(tmp_path: Path) -> None:
    """Without any, the pipeline would have no place for its letters, and is refused."""
    world = TopicWorld(tmp_path)
    topic, letters = world.options.pop("sink"), FileSink(str(tmp_path / "letters"), format="json")
    world.options |= {"dead_letters": topic, "expect": {"version = 1": "dead_letter"}}
    engine = refusing({1: None, 2: "dead_letter", 4: None})
    world.land(1, 2)
    world.run(0, engine)
    world.put_marks([(key_of(world.topic, BatchKey("live", 0)), None)])
    world.land(3)
    with pytest.raises(SinkError, match=r"where it takes the dead letters, name another table for them"):
        world.run(1, engine)
    for number, table in ((1, letters), (2, topic)):
        world.options["dead_letters"] = table
        world.run(number, engine)
        world.land(number + 3)
    assert ids(world) == [1, 3, 4]
    assert world.ids() == [2]


def test_no_rewind_is_named_to_where_the_log_does_not_go_back(tmp_path: Path) -> None:
    world = TopicWorld(tmp_path)
    world.options["min_batches_to_retain"] = 2
    filled(world, 6)
    world.land(6)
    world.put_marks([(key_of(world.topic, BatchKey("live", number)), None) for number in (3, 4, 5)])
    with pytest.raises(SinkError, match=r"has no mark of batch live/5, .*go on with a new topic") as refused:
        world.run(6)
    assert "rewind /" not in str(refused.value)
    findings = check_table(world.checkpoint, everything=True).findings
    assert [one for one in findings if "rewind /" in one.message + one.repair] == []
    world.topic = kafka.running().topic(partitions=2)
    world.name_sink()
    world.run(7)
    assert world.ids() == [6]


def test_another_topic_of_marks_that_is_named_later_knows_nothing_of_what_is_in(world: TopicWorld) -> None:
    others = f"{world.topic}-others"
    world.name_sink(marks=others)
    for number, clear_number in ((3, 0), (0, 1)):
        with pytest.raises(
            SinkError, match=f"{others} is gone, which has a mark.*or name by marks= the topic that has them"
        ):
            world.run(number, clear_number=clear_number)
    assert world.ids() == [0, 1, 2]
    world.name_sink()
    world.run(3)
    assert world.ids() == [0, 1, 2, 3]


def test_a_topic_that_was_made_again_together_with_its_marks_gets_everything_again(world: TopicWorld) -> None:
    for topic in (world.topic, world.marks):
        kafka.running().remove(topic)
    kafka.running().topic(name=world.topic, partitions=2)
    with pytest.raises(SinkError, match=r"does not know it: the table was made anew.*rewind .* --to -1"):
        world.run(3)
    world.expire_leases()
    applied(world, rewind(-1))
    for number in range(4, 8):
        world.run(number)
    assert world.ids() == [0, 1, 2, 3]


def test_a_new_topic_goes_on_where_the_marks_of_the_old_one_are_lost(world: TopicWorld) -> None:
    kafka.running().remove(world.marks)
    before, world.topic = world.topic, kafka.running().topic(partitions=2)
    world.name_sink()
    world.run(3)
    world.run(4)
    assert world.ids() == [3]
    assert len(read(before)) == 3


def test_what_was_set_aside_has_lost_no_mark_once_a_request_to_run_it_was_repaired(tmp_path: Path) -> None:
    """It was published nowhere: an answer in the place of the torn request would say that its records are there."""
    world = TopicWorld(tmp_path)
    world.options |= {"on_failure": "set_aside", "set_aside_after": 1}
    world.land(0)
    with pytest.raises(BatchSetAsideError):
        world.run(0, broken())
    world.land(1)
    world.run(1)
    with pytest.raises(TransformError):
        world.run(0, broken(), clear_number=1)
    (request,) = tmp_path.glob("checkpoint/**/replays/live/0/1")
    request.write_bytes(b"")
    world.expire_leases()
    applied(world)
    world.run(0, clear_number=2)
    assert world.ids() == [0, 1]
