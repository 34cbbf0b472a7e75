"""A source that the pipeline names no more: no batch is made without its rows that was planned with them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import BatchSetAsideError, SourceError
from airflow_provider_microbatch.execution.backfill import IntervalWork
from airflow_provider_microbatch.sources.intervals import Interval
from tests.execution.maintaining import expire_all
from tests.execution.typed_commands import advised, said
from tests.execution.world import CODE, World, run_identity
from tests.support.inline_engine import InlineEngine

BOTH = {0: [1, 11]}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A row of each of two sources is in batch 0."""
    world = World(tmp_path, sources=("a", "b"))
    world.land(1, source="a")
    world.land(11, source="b")
    return world


def without_b(world: World) -> dict[str, object]:
    """The DAG file names it no more."""
    both = dict(world.sources)
    world.sources = {"a": both["a"]}
    return both  # type: ignore[return-value]


def test_a_batch_that_is_planned_with_its_rows_is_not_made_without_them(world: World) -> None:
    world.execution.plan(run_identity(0))
    both = without_b(world)
    with pytest.raises(SourceError, match=r"source 'b'[\s\S]*Put it back"):
        world.run(0)
    world.sources = both  # type: ignore[assignment]
    world.run(0)
    assert world.table() == BOTH


def test_or_it_is_taken_back_as_the_error_says_and_planned_without_them(world: World) -> None:
    world.run(0)
    world.land(2, source="a")
    world.land(12, source="b")
    world.execution.plan(run_identity(1))
    without_b(world)
    with pytest.raises(SourceError, match="Put it back") as refused:
        world.run(1)
    (rewind,) = advised(str(refused.value), world)
    expire_all(world.root)
    assert said(rewind)[0] == 0
    world.run(2)
    assert world.table() == {**BOTH, 1: [2]}


def test_nor_is_it_published_by_the_steps_once_it_is_staged(world: World) -> None:
    """What it has read would be given up by nobody, and its commit would say that it read nothing."""
    attempt = world.staged(0)
    both = without_b(world)
    with pytest.raises(SourceError, match=r"source 'b'[\s\S]*Put it back"):
        world.execution.publish(attempt)
    assert world.table() == {}
    world.sources = both  # type: ignore[assignment]
    world.execution.publish(attempt)
    assert world.table() == BOTH


def test_a_clear_of_a_batch_with_its_rows_is_refused(world: World) -> None:
    world.run(0)
    both = without_b(world)
    before = world.files()
    with pytest.raises(SourceError, match=r"live/0 cannot be replayed, it has rows of source 'b'[\s\S]*Put it back"):
        world.run(0, clear_number=1)
    assert world.files() == before
    world.land(2, source="a")
    world.run(1)
    world.sources = both  # type: ignore[assignment]
    world.run(0, clear_number=1)
    assert world.table() == {**BOTH, 1: [2]}


def test_so_is_one_that_was_asked_for_before_it_was_removed(world: World) -> None:
    world.run(0)
    planned = world.execution.plan(run_identity(0, clear_number=1))
    assert planned is not None
    world.execution.look(planned.key, run_identity(0, clear_number=1), engine_of=lambda _: None)
    without_b(world)
    with pytest.raises(SourceError, match="source 'b'"):
        world.run(0, clear_number=1, try_number=2)
    assert world.table() == BOTH
    assert world.checkpoint.replays.pending(planned.key) == []


def test_so_is_a_batch_that_was_set_aside_with_them(world: World) -> None:
    world.options.update(on_failure="set_aside", set_aside_after=1)
    with pytest.raises(BatchSetAsideError):
        world.run(0, InlineEngine(transform=lambda sources: 1 / 0))  # type: ignore[arg-type, return-value]
    both = without_b(world)
    with pytest.raises(SourceError, match="source 'b'"):
        world.run(0, clear_number=1)
    world.sources = both  # type: ignore[assignment]
    world.run(0, clear_number=2)
    assert world.table() == BOTH


def test_so_is_a_backfill_that_would_replay_it(world: World) -> None:
    world.run(0)
    world.options["on_overlap"] = "replay"
    without_b(world)
    always = Interval(start_ms=0, end_ms=int(time.time()) * 1000 + 10_000)
    after_it = always.end_ms + 1
    work = IntervalWork(
        pipeline=world.pipeline, checkpoint=world.checkpoint, interval=always, clock_ms=lambda: after_it
    )
    with pytest.raises(SourceError, match="source 'b'"):
        work.run(run=run_identity(7), engine=InlineEngine(), code=CODE, transform=None)
    assert world.table() == BOTH


def test_an_attempt_that_is_open_when_it_goes_makes_no_job(world: World) -> None:
    run = run_identity(0)
    planned = world.execution.plan(run)
    assert planned is not None
    attempt = world.execution.open_attempt(key=planned.key, run=run, code=CODE, engine=InlineEngine())
    without_b(world)
    with pytest.raises(SourceError, match="source 'b'"):
        world.execution.job(attempt, None)


def test_one_without_rows_in_the_batch_may_go(world: World) -> None:
    world.run(0)
    world.land(2, source="a")
    world.run(1)
    without_b(world)
    world.run(1, clear_number=1)
    assert world.table() == {**BOTH, 1: [2]}
