"""What an older version wrote down about a pipeline: commands read it back, and only those that need it stop at it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.maintenance import Maintenance
from airflow_provider_microbatch.checkpoint.records import encode_record
from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import DefinitionError, MaintenanceError
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table.path_catalog import PathCatalog
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.upkeep.commands.start_behind import plan_start_behind
from airflow_provider_microbatch.upkeep.commands.steps import DropOutput, step_to_dict
from airflow_provider_microbatch.upkeep.commands.stored_steps import read_steps
from tests.execution.maintaining import applied, planned, rewind
from tests.execution.world import World
from tests.sinks.stages import NOTHING_KNOWN

GONE = "acme_gone:Sink"
ASKED = rf"The sink of \S+/pipelines/{{name}} cannot be used from here: '{GONE}' was not loaded"


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Batches 0 and 1 are of a pipeline of before, 2 and 3 of the one of today; both write one table."""
    made = World(tmp_path)
    for number in range(4):
        if number == 2:
            made.options["sink"] = FileSink(str(made.lake), format="json", options={"compression": "none"})
        made.land(number)
        made.run(number)
    return made


def rewrite(world: World, change: Callable[[dict[str, Any]], None]) -> str:
    """Have the older pipeline on record as another version wrote it, or as if its package was gone.

    :return: the name of its definition.
    """
    (attempt,) = world.checkpoint.attempts.all(BatchKey(LIVE, 0))
    assert attempt.definition is not None
    values = world.checkpoint.definitions.get(attempt.definition)
    assert values is not None
    change(values["arguments"])
    (world.root / "checkpoint/microbatch/pipelines" / attempt.definition).write_bytes(encode_record(values))
    return attempt.definition


def gone(arguments: dict[str, Any]) -> None:
    arguments["sink"]["class"] = GONE


def with_credential(arguments: dict[str, Any]) -> None:
    arguments["sink"]["arguments"]["options"] = {"password": "x"}
    arguments["conf"] = {"spark.jars": "x.jar"}


def with_options(definition: Definition, name: str, value: dict[str, str]) -> dict[str, Any]:
    plain = definition.to_dict()
    return {**plain, "arguments": {**plain["arguments"], name: value}}


PIPELINE = Pipeline("p", checkpoint="/c", sources={"s": FileSource("/l")}, sink=FileSink("/o"))


@pytest.mark.parametrize(
    ("definition", "name", "value"),
    [
        (FileSink("/lake"), "options", {"password": "x"}),
        (FileSource("/landing"), "options", {"password": "x"}),
        (FileSource("/landing"), "options", {"ignoreCorruptFiles": "true"}),
        (TableSink(PathCatalog("/lake"), "shop.orders"), "options", {"password": "x"}),
        (PIPELINE, "conf", {"a.b": "x"}),
        (PIPELINE, "conf", {"spark.sql.files.ignoreCorruptFiles": "true"}),
    ],
    ids=["sink", "source", "lossy source", "table", "pipeline", "lossy pipeline"],
)
def test_what_a_user_must_not_write_is_read_back_all_the_same(
    definition: Definition, name: str, value: dict[str, str]
) -> None:
    read = Definition.from_dict(with_options(definition, name, value))
    assert getattr(read, name) == value
    if isinstance(read, Sink):
        read.batches("live", NOTHING_KNOWN)
    changes: Any = {name: value}
    with pytest.raises(DefinitionError):
        dataclasses.replace(definition, **changes)  # type: ignore[type-var]


def test_an_older_definition_that_would_be_refused_today_keeps_no_command_from_its_work(world: World) -> None:
    rewrite(world, with_credential)
    applied(world, rewind(0))
    assert world.table() == {0: [0]}


def test_a_sink_that_is_gone_stops_no_rewind_of_batches_that_never_wrote_to_it(world: World) -> None:
    name = rewrite(world, gone)
    plan = applied(world, rewind(1))
    assert any(name in note and GONE in note for note in plan.notes)
    assert world.table() == {0: [0], 1: [1]}


def test_a_sink_that_is_gone_is_not_asked_for_a_batch_that_never_came_to_any(world: World) -> None:
    world.land(4)
    world.staged(4)
    world.expire_leases()
    rewrite(world, gone)
    applied(world, rewind(3, drop_output=False))
    assert world.checkpoint.offset_log.latest_id() == 3


def test_a_sink_that_is_gone_is_named_where_it_decides(world: World) -> None:
    (world.lake / "lane=live/batch_id=1").rename(world.root / "batch-1")
    name, before = rewrite(world, gone), world.files()
    with pytest.raises(MaintenanceError, match=ASKED.format(name=name)) as refused:
        applied(world, rewind(0))
    assert "trusted_modules = acme_gone" in str(refused.value)
    assert "with the packages that were installed there" in str(refused.value)
    assert world.files() == before


def test_repair_mends_what_does_not_depend_on_the_sink_that_is_gone(world: World) -> None:
    name = rewrite(world, gone)
    (world.root / "checkpoint/commits/2").unlink()
    plan = applied(world)
    assert any(name in note for note in plan.notes)
    assert not plan.problems
    assert world.checkpoint.commit_log.ids() == [0, 1, 2, 3]


def test_repair_says_which_sink_it_would_have_to_ask(world: World) -> None:
    (world.root / "checkpoint/commits/1").unlink()
    (world.lake / "lane=live/batch_id=1").rename(world.root / "batch-1")
    name = rewrite(world, gone)
    plan = planned(world)
    assert any(name in str(problem) for problem in plan.problems)


def test_a_definition_that_is_torn_is_named_and_the_rest_is_done(world: World) -> None:
    name = rewrite(world, gone)
    (world.root / "checkpoint/microbatch/pipelines" / name).write_text("v1\n{")
    assert any(name in note for note in applied(world, rewind(1)).notes)
    assert world.table() == {0: [0], 1: [1]}


def test_start_behind_needs_all_sinks(world: World) -> None:
    name = rewrite(world, gone)
    with pytest.raises(MaintenanceError, match=ASKED.format(name=name)):
        planned(world, lambda drafting: plan_start_behind(drafting, allow_reread=False))


def test_a_step_on_record_is_done_though_another_sink_is_gone(world: World) -> None:
    rewrite(world, gone)
    sink = world.pipeline.sink
    known = DropOutput(key="live/3", epoch=1, sink=sink.to_dict(), where="x", why="")
    other = DropOutput(key="live/3", epoch=1, sink=FileSink("/other").to_dict(), where="x", why="")
    store = open_store(world.pipeline.checkpoint)

    def left(step: DropOutput) -> Maintenance:
        return Maintenance(number=1, command="rewind", by="me", started_ms=0, steps=(step_to_dict(step),), sha256="")

    assert read_steps(left(known), store, told=()) == (known,)
    with pytest.raises(MaintenanceError, match=rf"no pipeline that is on record here\. The sink of [\s\S]*{GONE}"):
        read_steps(left(other), store, told=())
