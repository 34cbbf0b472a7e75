"""A real Structured Streaming query over a topic and this package go on from each other's checkpoint."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import CommitEntry
from airflow_provider_microbatch.checkpoint.handover import hand_over
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.execution.backfill import IntervalWork
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.execution.plan import Planner
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.intervals import Interval
from airflow_provider_microbatch.stores.location import open_store
from tests.environments import spark_script
from tests.execution.world import run_identity
from tests.sources.kafka_world import World, offsets
from tests.sources.test_kafka_spark import connector
from tests.spark_exchange.lake import RUN

pytestmark = [pytest.mark.spark, pytest.mark.exchange]

Query = Callable[..., dict[str, list[str]]]


@pytest.fixture(scope="module")
def query(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Query]:
    """Runs a query over a world's topic until it has read what is there: what each batch had."""
    broker = World(tmp_path_factory.mktemp("broker")).broker
    script = Path(__file__).with_name("kafka_query.py")
    with spark_script(Path(sys.executable), script, broker.address, ",".join(map(str, connector()))) as ask:

        def run(world: World, *, most: int = 1000) -> dict[str, list[str]]:
            answer = ask(json.dumps({"work": str(world.root), "topic": world.topic, "most": most}))
            found: dict[str, list[str]] = json.loads(answer)
            return found

        yield run


class Ours:
    """This package's side of a world's checkpoint."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.pipeline = Pipeline(
            "orders",
            checkpoint=str(world.root / "checkpoint"),
            sources={"orders": world.source(max_rows=2)},
            sink=FileSink(str(world.root / "lake"), format="json"),
            checkpoint_format="v1",
        )

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(open_store(self.pipeline.checkpoint), sources=("orders",))

    def plan(self) -> dict[tuple[str, int], list[int]]:
        """Plan the next batch; what it reads."""
        checkpoint = self.checkpoint
        planner = Planner(pipeline=self.pipeline, checkpoint=checkpoint, lane=checkpoint.lane("live"), clock_ms=now_ms)
        planned = planner.plan(run_identity(1))
        assert planned is not None
        reads, _ = planner.sources.reads(planned.ranges)
        return offsets(reads["orders"])

    def commit(self, number: int) -> None:
        """As if the batch were in the table."""
        assert self.checkpoint.commit_log.add(number, CommitEntry(epoch=1, run=RUN, committed_ms=1))


def test_spark_runs_our_planned_batch_exactly_and_goes_on(tmp_path: Path, query: Query) -> None:
    world = World(tmp_path, partitions=3)
    for partition, value in enumerate("abc"):
        world.broker.send(world.topic, [value], partition=partition)
    ours = Ours(world)
    first = ours.plan()
    world.broker.send(world.topic, ["later"], partition=1)
    assert hand_over(ours.checkpoint) == []
    had = query(world)
    planned = sorted("abc"[partition] for _, partition in first)
    assert len(planned) == 2
    assert had == {"0": planned, "1": sorted({*"abc", "later"} - {*planned})}
    assert verify_all(ours.checkpoint) == []


def test_we_go_on_from_what_spark_read_and_spark_from_what_we_did(tmp_path: Path, query: Query) -> None:
    world = World(tmp_path, partitions=12)
    world.broker.send(world.topic, ["a", "b", "c"], partition=11)
    assert query(world, most=2) == {"0": ["a", "b"], "1": ["c"]}
    ours = Ours(world)
    ours.checkpoint.claim(pipeline="orders", sources=["orders"], format="v1")
    text = ours.checkpoint.offset_log.get(1)
    assert text is not None
    opened = OpenedSources(ours.pipeline.sources, checkpoint=ours.checkpoint, lane="live", clock_ms=now_ms)
    source = opened.open("orders")
    assert source.latest_offset(text.ends["orders"]) == text.ends["orders"], "byte for byte as Spark wrote it"
    assert not source.has_new(text.ends["orders"])
    first = ours.checkpoint.offset_log.get(0)
    assert first is not None
    assert offsets(source.read(None, first.ends["orders"])) == {(world.topic, 11): [0, 1]}, "its own first position"
    world.broker.send(world.topic, ["d"], partition=3)
    assert ours.plan() == {(world.topic, 3): [0]}
    ours.commit(2)
    world.broker.send(world.topic, ["e"], partition=11)
    hand_over(ours.checkpoint)
    assert query(world) == {"3": ["e"]}
    assert verify_all(ours.checkpoint) == []


def test_what_a_lane_has_taken_is_handed_to_no_query(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.send(5, at_ms=1_790_000_000_000)
    ours = Ours(world)
    interval = Interval(start_ms=1_790_000_000_000, end_ms=1_790_000_001_000)
    IntervalWork(pipeline=ours.pipeline, checkpoint=ours.checkpoint, interval=interval).plan(run_identity(1))
    world.send(1)
    assert ours.plan() == {(world.topic, 0): [5]}, "a batch of two at most, and all before is the interval's"
    with pytest.raises(CheckpointError, match="lane interval-"):
        hand_over(ours.checkpoint)
