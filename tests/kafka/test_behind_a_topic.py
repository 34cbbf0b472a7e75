"""A batch that goes to a topic and to a table behind it: what is in the topic for good gets into the table, too."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import MaintenanceError, SinkError
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, SinkContext
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.kafka import KafkaSink
from airflow_provider_microbatch.sinks.kafka.opened import OpenKafka
from airflow_provider_microbatch.sinks.several import Sinks
from airflow_provider_microbatch.upkeep.commands.steps import DropStage
from tests.execution.maintaining import applied, rewind
from tests.execution.sleepers import Sleep
from tests.execution.test_dead_letters import refusing
from tests.execution.test_not_replaceable import Full, cut_off
from tests.kafka.pipeline import TopicWorld
from tests.support.delta_table import batches_of
from tests.support.inline_engine import InlineEngine

pytestmark = pytest.mark.slow


def engine() -> InlineEngine:
    return refusing({1: None, 2: "dead_letter"})


def world_of(root: Path, **given: str) -> TopicWorld:
    """Of its rows 1 goes to the topic, and 2 to the dead letters.

    :param given: arguments of the topic's sink.
    """
    world = TopicWorld(root, **given)
    world.options["dead_letters"] = FileSink(str(root / "letters"), format="json")
    world.options["expect"] = {"version = 1": "dead_letter"}
    world.land(1, 2)
    return world


def test_a_topic_that_takes_a_batch_again_gets_it_once_if_the_table_behind_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(tmp_path, on_replay="append")
    disk = Full(monkeypatch, "letters")
    for number in (1, 2, 3):
        with pytest.raises(SinkError, match="No space left"):
            world.run(0, engine(), try_number=number)
    disk.is_full = False
    world.run(0, engine(), try_number=4)
    assert world.ids() == [1]
    assert world.stages() == []


def test_a_clear_that_fails_behind_the_topic_is_published_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(tmp_path, on_replay="append")
    world.run(0, engine())
    disk = Full(monkeypatch, "letters")
    for number in (1, 2):
        with pytest.raises(SinkError, match="No space left"):
            world.run(0, engine(), clear_number=1, try_number=number)
    disk.is_full = False
    world.run(0, engine(), clear_number=1, try_number=3)
    assert world.ids() == [1, 1]
    assert world.stages() == []


def test_a_batch_that_gets_into_the_topic_while_it_is_rewound_stays_and_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(tmp_path)
    attempt = world.staged()
    world.expire_leases()
    Sleep(monkeypatch).before(DropStage, "apply", partial(cut_off, world, attempt, monkeypatch, "letters"))
    with pytest.raises(MaintenanceError, match=r"live/0 is in .*published while .* Nothing was rewound"):
        applied(world, rewind(-1))
    world.expire_leases()
    world.janitor()
    world.run(1, engine())
    assert world.ids() == [1, 2]
    assert world.checkpoint.commit_log.latest_id() == 0
    assert world.stages() == []


def lose_the_newest(world: TopicWorld) -> tuple[DeltaSink, KafkaSink]:
    """Two batches go to a table and to the topic; the table is put back to before the second, and data lands. Its sink
    and the topic's."""
    lake, topic = DeltaSink(str(world.lake)), world.options["sink"]
    world.options["sink"] = Sinks({"lake": lake, "topic": topic})
    for number in (0, 1):
        world.land(number)
        world.run(number)
        if number == 0:
            shutil.copytree(world.lake, world.root / "backup")
    shutil.rmtree(world.lake)
    (world.root / "backup").rename(world.lake)
    world.land(2)
    return lake, topic


def in_the_lake(world: TopicWorld) -> list[int]:
    return sorted(row["id"] for rows in batches_of(str(world.lake), apart=False).values() for row in rows)


def test_no_way_is_named_that_the_topic_refuses_to_bring_back_what_a_table_beside_it_has_lost(tmp_path: Path) -> None:
    world = TopicWorld(tmp_path)
    lake, topic = lose_the_newest(world)
    with pytest.raises(SinkError, match=r"does not know it.*refused as the pipeline is now: .*on_replay='app") as lost:
        world.run(2)
    assert "--drop-output" not in str(lost.value)
    world.options["sink"] = Sinks({"lake": lake, "topic": replace(topic, on_replay="append")})
    world.run(1, clear_number=1)
    world.run(2, try_number=2)
    assert in_the_lake(world) == [0, 1, 2]
    assert world.ids() == [0, 1, 1, 2]


def test_nor_where_the_pipeline_names_the_topic_no_more(tmp_path: Path) -> None:
    """The clear was refused, too, since the batch is in the topic: it was to be in both."""
    world = TopicWorld(tmp_path)
    world.options["sink"], _ = lose_the_newest(world)
    with pytest.raises(SinkError, match=r"does not know it.*clear their tasks, the oldest first\.") as lost:
        world.run(2)
    assert "--drop-output" not in str(lost.value)
    with pytest.raises(MaintenanceError, match="or clear the task of each batch that is to be made again"):
        applied(world, rewind(0))
    world.run(1, clear_number=1)
    world.run(2, try_number=2)
    assert in_the_lake(world) == [0, 1, 2]
    assert world.ids() == [0, 1]


def test_a_batch_that_stays_in_a_topic_of_before_is_made_beside_it(tmp_path: Path) -> None:
    """No rewind takes it out of there."""
    world = TopicWorld(tmp_path)
    topic = world.options["sink"]
    world.land(0)
    world.run(0)
    lake = DeltaSink(str(world.lake))
    world.options["sink"] = lake
    with pytest.raises(SinkError, match=r"alone or beside the new one: .*on_replay='append'") as refused:
        world.run(0, clear_number=1)
    assert "rewind" not in str(refused.value)
    world.options["sink"] = Sinks({"lake": lake, "topic": replace(topic, on_replay="append")})
    world.run(0, clear_number=1)
    assert in_the_lake(world) == [0]
    assert world.ids() == [0, 0]


def beside_a_lake(root: Path) -> TopicWorld:
    """A topic, and a table behind it that has a batch."""
    world = TopicWorld(root)
    world.options["sink"] = Sinks({"topic": world.options["sink"], "lake": DeltaSink(str(world.lake))})
    world.options["dead_letters"] = FileSink(str(root / "letters"), format="json")
    world.land(0)
    world.run(0)
    world.land(1)
    return world


def constrain(world: TopicWorld) -> None:
    DeltaTable(str(world.lake)).alter.add_constraint({"pos": "id >= 0"})


def judging(world: TopicWorld) -> InlineEngine:
    """By the rules that the table has now."""
    intake = DeltaSink(str(world.lake)).open(SinkContext()).intake()
    assert intake is not None
    return InlineEngine(told={"heldTo": list(intake.rules)})


def test_a_table_that_gets_a_rule_while_the_job_runs_keeps_the_topic_without_the_attempt(tmp_path: Path) -> None:
    world = beside_a_lake(tmp_path)
    with pytest.raises(SinkError, match=r"not held against.*Nothing was published; run the batch again"):
        world.run(1, InlineEngine(after_stage=lambda job: constrain(world)))
    assert world.ids() == [0]
    world.run(1, judging(world), try_number=2)
    assert world.ids() == [0, 1]
    assert batches_of(str(world.lake), apart=False).keys() == {BatchKey(LIVE, 0), BatchKey(LIVE, 1)}


def test_one_that_gets_it_behind_the_topic_names_what_leads_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, publish = beside_a_lake(tmp_path), OpenKafka.publish

    def late(self: OpenKafka, batch: ExpectedBatch, epoch: int) -> Manifest:
        found = publish(self, batch, epoch)
        constrain(world)
        return found

    leads_on = rf"attempt is in .*{world.topic} for good: take them off the table \(ALTER TABLE … DROP CONSTRAINT"
    with monkeypatch.context() as patch:
        patch.setattr(OpenKafka, "publish", late)
        with pytest.raises(SinkError, match=leads_on):
            world.run(1)
    with pytest.raises(SinkError, match=leads_on):
        world.run(1, judging(world), try_number=2)
    DeltaTable(str(world.lake)).alter.drop_constraint("pos")
    world.run(1, try_number=3)
    constrain(world)
    assert world.ids() == [0, 1]
    assert batches_of(str(world.lake), apart=False).keys() == {BatchKey(LIVE, 0), BatchKey(LIVE, 1)}
