"""A table that remembers its batches, and does not know what is committed: nothing is written on top of that."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.delta import DeltaSink
from tests.execution.world import World
from tests.support.delta_table import batches_of


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two batches in a Delta table, of which a backup was made after the first."""
    world = World(tmp_path, sink=DeltaSink(str(tmp_path / "lake")))
    world.land(1)
    world.run(0)
    shutil.copytree(world.lake, tmp_path / "backup")
    world.land(2)
    world.run(1)
    world.land(3)
    return world


def table(world: World) -> dict[int, list[int]]:
    return {key.id: sorted(row["id"] for row in rows) for key, rows in batches_of(world.lake).items()}


def restore(world: World) -> None:
    shutil.rmtree(world.lake)
    shutil.copytree(world.root / "backup", world.lake)


@pytest.mark.slow
def test_a_restored_table_gets_no_batch_until_what_it_lost_is_back(world: World) -> None:
    restore(world)
    with pytest.raises(SinkError, match=r"batch live/1 is committed, and .*lake does not know it.*1 to 1.*--to 0"):
        world.run(2)
    assert table(world) == {0: [1]}
    assert main(["check", world.pipeline.checkpoint]) == 1
    world.expire_leases()
    assert main(["rewind", world.pipeline.checkpoint, "--to", "0", "--drop-output"]) == 0
    for number in (3, 4):
        world.run(number)
    assert sorted(row for rows in table(world).values() for row in rows) == [1, 2, 3]


def test_a_clear_of_the_batch_that_is_lost_puts_it_back(world: World) -> None:
    restore(world)
    world.run(1, clear_number=1)
    world.run(2)
    assert table(world) == {0: [1], 1: [2], 2: [3]}


def test_a_table_that_was_made_anew_is_no_table_of_the_pipeline(world: World) -> None:
    shutil.rmtree(world.lake / "_delta_log")
    with pytest.raises(SinkError, match=r"batch live/1 is committed"):
        world.run(2)


def test_rows_that_somebody_has_deleted_are_not_lost(world: World) -> None:
    from deltalake import DeltaTable

    DeltaTable(world.lake.as_uri()).delete()
    world.run(2)
    assert table(world) == {0: [], 1: [], 2: [3]}
