"""A source that has never had data and is given no schema: sensor and plan agree, and the batch does without it."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_microbatch.runtime.batch import Frames
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.sources.file import FileSource
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.world import CODE, World, run_identity
from tests.support.inline_engine import InlineEngine

NAMES = ("orders", "refunds")


def without_schema(world: World, *names: str) -> World:
    for name in names:
        world.sources[name] = FileSource(str(world.landing(name)), format="json")
    return world


def test_a_batch_does_without_the_frame_of_a_source_that_never_had_data(tmp_path: Path) -> None:
    world = without_schema(World(tmp_path, sources=NAMES), "refunds")
    world.land(1)
    assert world.execution.should_fire().fire
    engine = InlineEngine()
    assert world.run(0, engine) is not None
    (job,) = engine.jobs
    assert list(job.sources) == ["orders"]
    assert "Give it a schema" in job.absent["refunds"]
    assert world.table() == {0: [1]}
    world.land(2, source="refunds")
    assert world.execution.should_fire().fire
    world.run(1, engine)
    assert engine.jobs[-1].absent == {}
    assert world.table() == {0: [1], 1: [2]}


def test_so_does_a_data_interval(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, plan="interval", sources=NAMES)
    without_schema(world, "refunds")
    world.land_at(0, 1)
    world.backfill(hour(0), 1)
    assert world.ids() == [1]


def test_the_frame_says_why_it_is_absent_and_how_to_do_without(tmp_path: Path) -> None:
    frames = Frames(absent={"refunds": "there is no file in it."})
    assert "refunds" not in frames
    with pytest.raises(KeyError, match=r"'refunds' has no frame in this batch: there is no file in it\. Or ask `if"):
        frames["refunds"]
    with pytest.raises(KeyError, match=r"no source 'returns'"):
        frames["returns"]


def test_a_job_tells_it_and_one_of_an_older_version_has_nothing_to_tell(tmp_path: Path) -> None:
    world = without_schema(World(tmp_path, sources=NAMES), "refunds")
    world.land(1)
    run = run_identity(0)
    planned = world.execution.plan(run)
    assert planned is not None
    attempt = world.execution.open_attempt(key=planned.key, run=run, code=CODE, engine=InlineEngine())
    job = world.execution.job(attempt, None)
    assert Job.from_json(job.to_json()) == job
    values = json.loads(job.to_json())
    del values["absent"]
    assert Job.from_json(json.dumps(values)).absent == {}


_steps = st.lists(st.one_of(st.sampled_from(NAMES), st.just("run"), st.just("fails")), max_size=8)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(_steps, st.sets(st.sampled_from(NAMES)))
def test_what_fires_can_be_planned_whatever_has_data_and_a_schema(steps: list[str], schemaless: set[str]) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        _check(without_schema(World(root, sources=NAMES), *schemaless), [*steps, "run"])
    finally:
        shutil.rmtree(root)


def _check(world: World, steps: list[str]) -> None:
    landed = 0
    for number, step in enumerate(steps):
        if step in NAMES:
            world.land(landed, source=step)
            landed += 1
            continue
        fires = world.execution.should_fire(run_identity(number)).fire
        planned: Any = world.execution.plan(run_identity(number))
        assert fires == (planned is not None)
        if planned is not None and step == "run":
            assert world.run(number) is not None
    # Planned with what had landed by then, a batch that was left is made before what came later.
    assert sum(map(len, world.table().values())) <= landed
    while world.run(1_000 + len(world.table())) is not None:
        pass
    assert sorted(number for ids in world.table().values() for number in ids) == list(range(landed))
