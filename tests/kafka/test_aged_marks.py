"""Old marks have aged out of their topic: what is in is not published again, whichever marks are left."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import MaintenanceError, SinkError
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.kafka.mark import key_of
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.maintaining import applied, filled, rewind
from tests.execution.test_newest import set_aside
from tests.kafka.pipeline import TopicWorld
from tests.kafka.test_behind_a_topic import engine, world_of
from tests.support import kafka
from tests.support.inline_engine import InlineEngine
from tests.support.kafka_stages import read

pytestmark = pytest.mark.slow

LOST = r"batch live/0 is committed\. .*has no mark of batch live/0, and .*leave the batch as it is"


def age(world: TopicWorld) -> None:
    """For a while the marks age out, and the first two are gone; then somebody sets the policy as it was."""
    before = read(world.marks, partitions=1)[2].offset
    set_policy(world, "compact,delete")
    admin = kafka.running().admin()
    for future in admin.delete_records([TopicPartition(world.marks, 0, before)]).values():
        future.result(30)
    with pytest.raises(SinkError, match=r"Set cleanup\.policy=compact there\. .* a clear of its batch is refused"):
        world.run(4)
    set_policy(world, "compact")


def set_policy(world: TopicWorld, policy: str) -> None:
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    asked = [ConfigResource("topic", world.marks, incremental_configs=[entry])]
    for future in kafka.running().admin().incremental_alter_configs(asked).values():
        future.result(30)


def take_out(world: TopicWorld) -> None:
    """Somebody takes the oldest mark out."""
    world.put_marks([(key_of(world.topic, BatchKey("live", 0)), None)])


@pytest.mark.parametrize("on_replay", ["fail", "append"])
@pytest.mark.parametrize("lose", [age, take_out])
def test_a_batch_whose_mark_is_gone_is_not_published_again_by_a_clear(
    tmp_path: Path, lose: Callable[[TopicWorld], None], on_replay: str
) -> None:
    world = filled(TopicWorld(tmp_path, on_replay=on_replay), 4)
    world.land(4)
    lose(world)
    world.run(4)
    with pytest.raises(SinkError, match=LOST):
        world.run(0, clear_number=1)
    assert not world.checkpoint.replays.pending(BatchKey("live", 0))
    found = check_table(world.checkpoint, everything=True).findings
    assert re.search(LOST, next(one.message for one in found if "live/0" in one.message))
    assert not any("Clear task" in one.repair for one in found)
    assert world.ids() == [0, 1, 2, 3, 4]


def test_nor_is_one_whose_mark_goes_while_its_replay_runs(tmp_path: Path) -> None:
    world = filled(TopicWorld(tmp_path, on_replay="append"), 2)
    with pytest.raises(SinkError, match=LOST):
        world.run(0, InlineEngine(after_stage=lambda job: take_out(world)), clear_number=1)
    assert world.ids() == [0, 1]


def test_nor_by_a_rewind_that_is_to_take_it_out(tmp_path: Path) -> None:
    """Nobody finds it there to say that it cannot be taken out. Whoever has been told types it without that."""
    world = filled(TopicWorld(tmp_path, on_replay="append"), 2)
    world.put_marks([(key_of(world.topic, BatchKey("live", 1)), None)])
    with pytest.raises(MaintenanceError, match=r"has no mark of batch live/1, .*Bring the mark back.*Nothing was done"):
        applied(world, rewind(0))
    assert world.checkpoint.commit_log.latest_id() == 1
    notes = applied(world, rewind(0, drop_output=False)).notes
    assert any("has no mark of batch live/1" in note for note in notes)


def test_nor_by_one_that_finds_it_in_a_table_behind_the_topic(tmp_path: Path) -> None:
    world = world_of(tmp_path, on_replay="append")
    world.run(0, engine())
    take_out(world)
    with pytest.raises(MaintenanceError, match="has no mark of batch live/0, "):
        applied(world, rewind(-1))
    assert world.ids() == [1]


def test_a_topic_that_is_named_by_another_connection_is_the_same(tmp_path: Path) -> None:
    world = filled(TopicWorld(tmp_path), 2)
    world.name_sink(conn_id=None, bootstrap_servers=kafka.running().address)
    take_out(world)
    with pytest.raises(SinkError, match=LOST):
        world.run(0, clear_number=1)
    assert world.ids() == [0, 1]


def test_a_batch_that_had_another_table_is_made_in_the_topic_by_a_clear(tmp_path: Path) -> None:
    world = TopicWorld(tmp_path)
    topic, world.options["sink"] = world.options["sink"], FileSink(str(tmp_path / "files"), format="json")
    world.land(0)
    world.run(0)
    world.options["sink"] = topic
    world.land(1)
    world.run(1)
    rmtree(tmp_path / "files" / "lane=live" / "batch_id=0")
    world.run(0, clear_number=1)
    assert world.ids() == [0, 1]


def test_a_batch_that_was_set_aside_has_no_mark_to_lose(tmp_path: Path) -> None:
    """A clear of one between others was refused: its mark was taken for lost."""
    world = TopicWorld(tmp_path)
    world.options |= {"on_failure": "set_aside", "set_aside_after": 1, "set_aside_after_dead": 1}
    filled(world, 1)
    world.land(1)
    set_aside(world, 1)
    world.land(2)
    world.run(2)
    world.run(1, clear_number=1)
    assert world.ids() == [0, 1, 2]


@pytest.mark.parametrize("cleared", [2, 3])
def test_the_batches_behind_one_whose_mark_is_gone_are_cleared(tmp_path: Path, cleared: int) -> None:
    """Its records are there: that it has no mark hides no loss, and says nothing of theirs."""
    world = filled(TopicWorld(tmp_path, on_replay="append"), 4)
    world.put_marks([(key_of(world.topic, BatchKey("live", 1)), None)])
    world.run(cleared, clear_number=1)
    assert world.ids() == sorted([0, 1, 2, 3, cleared])


def test_so_is_one_behind_it_that_was_set_aside(tmp_path: Path) -> None:
    """It was in no topic, and retention kept all from there on."""
    world = TopicWorld(tmp_path)
    world.options |= {"on_failure": "set_aside", "set_aside_after": 1, "set_aside_after_dead": 1}
    filled(world, 2)
    world.land(2)
    set_aside(world, 2)
    world.land(3)
    world.run(3)
    world.put_marks([(key_of(world.topic, BatchKey("live", 1)), None)])
    world.run(2, clear_number=1)
    assert world.ids() == [0, 1, 2, 3]


def test_a_batch_behind_the_newest_is_not_made_while_that_has_lost_its_mark(tmp_path: Path) -> None:
    """Behind it, nobody would miss the newest one again."""
    world = TopicWorld(tmp_path)
    world.options |= {"on_failure": "set_aside", "set_aside_after": 1, "set_aside_after_dead": 1}
    filled(world, 2)
    world.land(2)
    set_aside(world, 2)
    world.put_marks([(key_of(world.topic, BatchKey("live", 1)), None)])
    with pytest.raises(SinkError, match="has no mark of batch live/1, "):
        world.run(2, clear_number=1)
    assert world.ids() == [0, 1]
