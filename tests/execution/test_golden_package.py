"""What a version of before has written (``tests/data/golden/make_package_golden.py``) goes on under this one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch import PathCatalog, TableSink
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.maintenance import Maintenance
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.triggers.new_data import NewDataTrigger
from airflow_provider_microbatch.upkeep.commands.steps import DropOutput, step_to_dict
from airflow_provider_microbatch.upkeep.commands.stored_steps import read_steps
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.world import World
from tests.support.inline_engine import InlineEngine

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "package-2026-11-22"


def world_of(name: str, root: Path, **options: Any) -> World:
    """A copy of a golden world, as if it had been made below ``root``."""
    shutil.copytree(GOLDEN / name, root, dirs_exist_ok=True)
    for path in (path for path in root.rglob("*") if path.is_file()):
        path.write_bytes(path.read_bytes().replace(b"@ROOT@", str(root).encode()))
    for path in (root / "landing").rglob("*.json"):
        os.utime(path, (1_700_000_000 + int(path.stem), 1_700_000_000 + int(path.stem)))
    return World(root, **options)


@pytest.fixture
def files(tmp_path: Path) -> World:
    return world_of("files", tmp_path)


@pytest.fixture
def tables(tmp_path: Path) -> World:
    catalog = PathCatalog(str(tmp_path / "tables"))
    return world_of("tables", tmp_path, sink=TableSink(catalog, "shop.orders", format="json"))


def rows(folder: Path) -> list[int]:
    """All ids that a reader of the folder sees: names that begin with an underline are hidden."""
    parts = [part for part in folder.rglob("part-*.json") if "/_" not in part.relative_to(folder).as_posix()]
    return sorted(json.loads(line)["id"] for part in parts for line in part.read_text().splitlines())


def test_what_was_planned_is_run_and_batches_go_on(files: World) -> None:
    assert verify_all(files.checkpoint) == check_table(files.checkpoint, everything=True).findings == []
    assert files.table() == {0: [0], 1: [1], 2: [2]}
    files.run(4)
    files.land(5)
    files.run(5)
    assert files.table() == {0: [0], 1: [1], 2: [2], 3: [3], 4: [5]}
    assert verify_all(files.checkpoint) == check_table(files.checkpoint, everything=True).findings == []


def test_a_batch_of_before_is_replayed(files: World) -> None:
    files.run(1, InlineEngine(transform=lambda _: [{"id": 100}]), clear_number=1, try_number=3)
    assert files.table()[1] == [100]


def test_a_replay_that_waits_for_its_answer_is_made_in_the_table_of_before(tables: World) -> None:
    assert verify_all(tables.checkpoint) == check_table(tables.checkpoint, everything=True).findings == []
    tables.run(1, InlineEngine(transform=lambda _: [{"id": 100}]), clear_number=1, try_number=3)
    assert rows(tables.root / "tables") == [0, 2, 100]
    assert tables.checkpoint.replays.pending(BatchKey("live", 1)) == []


def test_the_janitor_calls_the_hook_that_a_version_of_before_has_named(tables: World) -> None:
    """The stage of the killed attempt goes by it: the hook of a table sink."""
    stages = tables.root / "tables/shop/orders/_staging"
    assert list(stages.rglob("part-0.json"))
    tables.expire_leases()
    assert tables.janitor().problems == []
    assert list(stages.rglob("part-0.json")) == []
    end = tables.checkpoint.attempts.ended(BatchKey("live", 3), 1)
    assert end is not None
    assert end.state == "failed"
    tables.run(4)
    assert rows(tables.root / "tables") == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["files", "tables"])
def test_a_trigger_of_before_is_read_back(name: str, tmp_path: Path) -> None:
    made = world_of(name, tmp_path)
    path, arguments = json.loads((made.root / "trigger.json").read_text())
    assert path == f"{NewDataTrigger.__module__}.{NewDataTrigger.__qualname__}"
    pipeline = Pipeline.from_dict(NewDataTrigger(**arguments).pipeline)
    assert isinstance(pipeline, Pipeline)
    assert pipeline.checkpoint == str(tmp_path / "checkpoint")


def before(values: dict[str, Any]) -> dict[str, Any]:
    """A definition of a table sink with the class paths of before."""
    text = json.dumps(values).replace("sinks.table:", "staging.table_sink:").replace("sinks.table.", "staging.")
    assert text != json.dumps(values)
    return dict(json.loads(text))


def test_a_command_that_was_killed_under_a_version_of_before_is_finished(tables: World) -> None:
    step = DropOutput(key="live/1", epoch=1, sink=before(tables.pipeline.sink.to_dict()), where="x", why="")
    left = Maintenance(number=1, command="rewind", by="me", started_ms=0, steps=(step_to_dict(step),), sha256="")
    assert read_steps(left, open_store(tables.pipeline.checkpoint), told=())


def test_the_janitor_takes_the_sink_that_it_is_given_for_that_of_before(tables: World) -> None:
    """Nothing is loaded then: it may be of a class that nobody trusts here."""
    live = tables.pipeline.sink
    assert Sink.from_dict(before(live.to_dict()), live=[live]) is live
    (name, *_) = tables.checkpoint.definitions.names()
    assert tables.checkpoint.definitions.sink(name) == live.to_dict()
