"""A pipeline whose sources are all finished is complete: nothing is made any more, and everybody says so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.execution.fire import FireDecision
from airflow_provider_microbatch.graph.watch import JobWatch
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sources.file import FileSource
from tests.execution.world import CODE, Killed, World, run_identity
from tests.support.inline_engine import InlineEngine


def offline(root: Path, *names: str) -> World:
    """Sources that end, one file a batch."""
    world = World(root, sources=names or ("orders",))
    for name in world.sources:
        world.sources[name] = FileSource(str(world.landing(name)), schema="id long", max_files=1, bounded=True)
    return world


def asked(world: World) -> FireDecision:
    return world.execution.should_fire(run_identity(99))


def test_when_what_was_there_is_read_the_sensor_the_plan_and_the_summary_say_complete(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    world = offline(tmp_path)
    world.land(0)
    world.land(1)
    first = world.run(0)
    assert (first and first.complete, asked(world).complete, asked(world).fire) == (False, False, True)
    last = world.run(1)
    assert last is not None
    assert (last.complete, last.to_dict()["complete"]) == (True, True)
    decision = asked(world)
    assert (decision.fire, decision.complete) == (False, True)
    assert decision.reason == (
        'complete: all its sources are finished, and there is nothing after {orders: {"logOffset":1}}'
    )
    with caplog.at_level("INFO"):
        assert world.run(2) is None
    assert "Pipeline orders is complete" in caplog.text
    assert world.execution.planner.complete() == decision.reason
    assert main(["log", world.pipeline.checkpoint]) == 0
    shown = capsys.readouterr().out.splitlines()[2:]
    assert ["committed, complete" in line for line in shown] == [False, True]
    assert main(["show", world.pipeline.checkpoint, "1"]) == 0
    assert "committed, complete" in capsys.readouterr().out


@pytest.mark.parametrize("dies", ["planned", "staged", "published"])
def test_a_finished_split_is_never_assigned_again_whoever_dies_and_whatever_becomes_of_its_file(
    tmp_path: Path, dies: str
) -> None:
    world = offline(tmp_path)
    files = [world.land(number) for number in range(3)]
    for number in range(3):
        if dies == "planned":
            world.execution.plan(run_identity(number))
        elif dies == "staged":
            world.staged(number)
        else:
            execution = world.execution
            execution.commit = die  # type: ignore[method-assign, assignment]
            with pytest.raises(Killed):
                execution.run(run=run_identity(number), engine=InlineEngine(), code=CODE, transform=None)
        world.expire_leases()
        engine = InlineEngine()
        summary = world.run(number, engine, try_number=2)
        assert summary is not None
        assert summary.key.id == number
        # It is landed again, newer and with other rows: of a split that is finished nobody hears any more.
        files[number].write_text(json.dumps({"id": 100 + number}) + "\n")
        world.land(50 + number)
        world.janitor()
    decision = asked(world)
    assert (decision.fire, decision.complete) == (False, True)
    assert world.run(9) is None
    assert world.table() == {0: [0], 1: [1], 2: [2]}


def test_a_finished_source_beside_one_that_goes_on_is_not_looked_at(tmp_path: Path) -> None:
    world = offline(tmp_path, "past", "new")
    world.sources["new"] = FileSource(str(world.landing("new")), schema="id long")
    world.land(0, source="past")
    world.land(1, source="new")
    world.run(0)
    shutil.rmtree(world.landing("past"))
    world.land(2, source="new")
    assert asked(world).reason == "new data in new"
    engine = InlineEngine()
    summary = world.run(1, engine)
    assert summary is not None
    assert not summary.complete
    assert [len(read.arguments["groups"]) for read in (engine.jobs[0].sources[name] for name in ("past", "new"))] == [
        0, 1,
    ]  # fmt: skip
    assert not asked(world).complete
    assert world.table() == {0: [0, 1], 1: [2]}


def test_a_source_that_is_added_or_goes_on_ends_it(tmp_path: Path) -> None:
    world = offline(tmp_path)
    world.land(0)
    world.run(0)
    assert asked(world).complete
    world.sources["more"] = FileSource(str(world.landing("more")), schema="id long")
    assert not asked(world).complete
    world.land(1, source="more")
    world.run(1)
    del world.sources["more"]
    assert asked(world).complete
    world.land(2)
    world.sources["orders"] = FileSource(str(world.landing()), schema="id long")
    assert asked(world).fire
    world.run(2)
    assert world.table() == {0: [0], 1: [1], 2: [2]}


def test_a_batch_that_was_set_aside_leaves_a_pipeline_complete(tmp_path: Path) -> None:
    world = offline(tmp_path)
    world.options |= {"on_failure": "set_aside", "set_aside_after": 1}
    world.land(0)
    with pytest.raises(Exception, match="set aside"):
        world.run(0, InlineEngine(transform=lambda _: 1 / 0))  # type: ignore[arg-type, return-value]
    assert asked(world).complete
    commit = world.checkpoint.commit_log.get(0)
    assert commit is not None
    assert (commit.set_aside, commit.complete) == (True, True)


def test_before_anything_was_there_it_waits(tmp_path: Path) -> None:
    world = offline(tmp_path)
    decision = asked(world)
    assert (decision.fire, decision.complete) == (False, False)
    assert world.execution.planner.complete() is None


def test_a_job_is_complete_when_all_its_pipelines_are(tmp_path: Path) -> None:
    worlds = [offline(tmp_path / name) for name in "ab"]
    by_place = {world.pipeline.checkpoint: world for world in worlds}

    def ask(pipeline: Pipeline, searched_ms: int | None) -> FireDecision:
        return asked(by_place[pipeline.checkpoint])

    watch = JobWatch([(world.pipeline, world.checkpoint) for world in worlds], ask=ask, retry_seconds=60)
    for done, world in enumerate(worlds):
        assert (watch.look().fire, watch.look().complete) == (False, False)
        world.land(done)
        assert (watch.look().fire, watch.look().complete) == (True, False)
        world.run(0)
    assert (watch.look().fire, watch.look().complete) == (False, True)


def die(*_: object, **__: object) -> None:
    raise Killed
