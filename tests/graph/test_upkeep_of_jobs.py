"""What a job remembers between runs: whose its sinks are, and which pipeline has failed."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import pytest

from airflow_provider_microbatch import FileSink, FileSource
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.exceptions import DefinitionError, EngineError, SourceError, TransformError
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.fire import FireDecision
from airflow_provider_microbatch.graph import JobGraph
from airflow_provider_microbatch.graph.pause import LONGEST_SECONDS, pause_of
from airflow_provider_microbatch.graph.sinks_on_record import check_sinks
from airflow_provider_microbatch.graph.watch import JobWatch
from airflow_provider_microbatch.stores.location import open_store
from tests.execution.world import CODE, World, run_identity
from tests.support.counted import Count, CountedStore
from tests.support.inline_engine import InlineEngine


def test_a_table_does_not_go_on_under_another_pipeline(tmp_path: Path) -> None:
    """Its checkpoint does not know what is in the table, and would read the sources into it again."""
    job = str(tmp_path / "shop")
    check_sinks(job, pipeline="orders", sinks=["orders", "raw"])
    check_sinks(job, pipeline="orders", sinks=["orders"])
    check_sinks(job, pipeline="people", sinks=["people"])
    with pytest.raises(DefinitionError) as refused:
        check_sinks(job, pipeline="people", sinks=["people", "raw"])
    assert "sink 'raw' was written by pipeline 'orders' of this job" in str(refused.value)
    assert "pipeline='orders'" in str(refused.value)


def run_part(graph: JobGraph, name: str, number: int) -> None:
    """What the task of a part of a job does."""
    pipeline = graph.by_name()[name]
    check_sinks(graph.checkpoint, pipeline=name, sinks=graph.sinks_of(name))
    execution = Execution(pipeline=pipeline, checkpoint=Checkpoint(open_store(pipeline.checkpoint)))
    execution.run(run=run_identity(number), engine=InlineEngine(), code=CODE, transform=None)


def test_whoever_does_what_the_message_says_has_each_row_once(tmp_path: Path) -> None:
    """Another sink is written down before the first one. A checkpoint that is moved to the other name's place is none
    of its pipeline: that is no way on."""
    world = World(tmp_path)
    lands = itertools.count()

    def shop(*sinks: tuple[str, dict[str, str]]) -> JobGraph:
        with JobGraph("shop", checkpoint=str(tmp_path / "shop")) as graph:
            orders = graph.source("orders", FileSource(str(world.landing()), format="json", schema="id long"))
            for name, more in sinks:
                graph.sink(name, orders, FileSink(str(tmp_path / name), format="json"), **more)
        world.land(next(lands))
        return graph

    run_part(shop(("lake", {})), "lake", 0)
    with pytest.raises(DefinitionError, match=r"keeps its name: sink\('lake', …, pipeline='lake'\)") as told:
        run_part(shop(("audit", {}), ("lake", {})), "audit", 1)
    assert "remove" not in str(told.value)
    assert "moved" not in str(told.value)
    run_part(shop(("audit", {}), ("lake", {"pipeline": "lake"})), "lake", 2)
    assert world.table() == {0: [0], 1: [1, 2]}
    run_part(shop(("all", {}), ("lakes", {})), "all", 3)


def failing(world: World) -> None:
    def fail(_: object) -> list[dict[str, object]]:
        raise ValueError("no such column: amuont")

    with pytest.raises(TransformError):
        world.run(0, InlineEngine(transform=fail))


def test_a_batch_that_fails_is_left_alone_twice_as_long_each_time(tmp_path: Path) -> None:
    world = World(tmp_path)
    checkpoint = world.checkpoint
    assert pause_of(checkpoint, first_seconds=60) is None
    world.land(1, 2)
    for failures, seconds in enumerate((60, 120, 240), start=1):
        failing(world)
        pause = pause_of(checkpoint, first_seconds=60)
        assert pause is not None
        assert pause.failures == failures
        assert seconds - 30 < pause.seconds <= seconds
    assert pause_of(checkpoint, first_seconds=0) is None
    world.run(0)
    assert pause_of(checkpoint, first_seconds=60) is None


def test_no_more_failures_are_counted_than_make_the_longest_pause(tmp_path: Path) -> None:
    """A batch that cannot succeed is looked at every few seconds, for days."""
    world = World(tmp_path)
    world.land(1)
    asked = []
    for failures in range(1, 13):
        failing(world)
        count = Count()
        counted = CountedStore(open_store(world.pipeline.checkpoint), count)
        pause = pause_of(Checkpoint(counted, sources=["orders"]), first_seconds=LONGEST_SECONDS / 4)
        assert pause is not None
        assert f"failed {('once', '2 times', '3 times', '3 times or more')[min(failures, 4) - 1]}, and" in str(pause)
        assert pause.seconds <= LONGEST_SECONDS
        asked.append(count.total)
    assert asked[3:] == asked[2:3] * 9


def test_one_whose_task_is_killed_again_and_again_is_left_alone_too(tmp_path: Path) -> None:
    """Its end is on record only when the next attempt finds it dead."""
    world = World(tmp_path)
    world.land(1)
    for number, failures in enumerate((1, 2, 3)):
        world.staged(number)
        assert pause_of(world.checkpoint, first_seconds=600) is None, "it is alive"
        world.expire_leases()
        pause = pause_of(world.checkpoint, first_seconds=600)
        assert pause is not None
        assert pause.failures == failures


def test_an_attempt_from_the_future_has_no_pause(tmp_path: Path) -> None:
    """A clock that was put back, or who writes in the checkpoint, would have the table stand still for as long."""
    world = World(tmp_path)
    world.land(1)
    failing(world)
    in_a_year = time.time() + 365 * 24 * 3600
    for path in (tmp_path / "checkpoint" / "attempts").rglob("*"):
        os.utime(path, (in_a_year, in_a_year))
    assert pause_of(world.checkpoint, first_seconds=60) is None


def test_an_outage_of_the_engine_has_a_pause_too(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.land(1)

    def refuse(_: object) -> None:
        raise EngineError("the cluster is away")

    with pytest.raises(EngineError):
        world.run(0, InlineEngine(before_stage=refuse))
    pause = pause_of(world.checkpoint, first_seconds=60)
    assert pause is not None
    assert "has failed once, and is tried again in" in str(pause)


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


def test_the_watch_begins_a_run_for_who_has_work_and_for_no_one_in_a_pause(tmp_path: Path) -> None:
    failed, idle, busy = (World(tmp_path / name) for name in ("failed", "idle", "busy"))
    failed.land(1)
    failing(failed)
    worlds = (failed, idle, busy)
    asked: list[object] = []
    has_work: list[object] = []

    def ask(pipeline: object, searched_ms: int | None) -> FireDecision:
        asked.append((pipeline, searched_ms))
        return FireDecision(fire=pipeline in has_work, reason="asked")

    clock = Clock()
    watch = JobWatch(
        [(world.pipeline, world.checkpoint) for world in worlds], ask=ask, retry_seconds=60, clock_ms=clock
    )
    assert not watch.look().fire
    assert [one for one, _ in asked] == [idle.pipeline, busy.pipeline]
    assert "has failed once" in watch.look().reason
    clock.now = 5_000
    has_work.append(busy.pipeline)
    assert watch.look().fire
    assert asked[-1] == (busy.pipeline, 0)


def test_one_that_cannot_be_asked_is_no_reason_to_begin_run_after_run(tmp_path: Path) -> None:
    world = World(tmp_path)

    def ask(pipeline: object, searched_ms: int | None) -> FireDecision:
        raise SourceError("the landing folder is away")

    clock = Clock()
    watch = JobWatch([(world.pipeline, world.checkpoint)], ask=ask, retry_seconds=60, clock_ms=clock)
    assert not watch.look().fire
    clock.now = 59_000
    assert not watch.look().fire
    clock.now = 60_000
    assert watch.look().fire
    assert "the landing folder is away" in watch.look().reason


def test_a_graph_that_is_refused_leaves_no_sink_on_record(tmp_path: Path) -> None:
    """Else the way on that the message names would be refused too."""
    job = str(tmp_path / "shop")
    check_sinks(job, pipeline="orders", sinks=["orders"])
    with pytest.raises(DefinitionError, match="sink 'orders' was written by pipeline 'orders'"):
        check_sinks(job, pipeline="first", sinks=["first", "orders"])
    check_sinks(job, pipeline="orders", sinks=["first", "orders"])
