"""The table's folder is away, or the pipeline writes to another table: nothing is hidden, lost or doubled silently."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.execution.maintenance.rewind import plan_rewind
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.staging.path_catalog import PathCatalog
from airflow_provider_microbatch.staging.table_sink import TableSink
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.maintaining import applied
from tests.execution.world import World
from tests.support.inline_engine import InlineEngine


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two batches are committed, and a file has come for the next one."""
    world = World(tmp_path)
    for number in range(2):
        world.land(number)
        world.run(number)
    world.land(2)
    return world


@pytest.mark.parametrize("mount_point", [False, True], ids=["not there", "empty"])
def test_nothing_is_planned_while_the_table_is_away(world: World, mount_point: bool) -> None:
    kept = world.lake.rename(world.root / "kept")
    if mount_point:
        world.lake.mkdir()
    with pytest.raises(SinkError, match=r"batch live/1 is committed, and the table .* may not be mounted"):
        world.run(2)
    assert world.checkpoint.offset_log.ids() == [0, 1]
    shutil.rmtree(world.lake, ignore_errors=True)
    kept.rename(world.lake)
    world.run(3)
    assert world.table() == {0: [0], 1: [1], 2: [2]}


def test_a_table_that_was_emptied_on_purpose_goes_on(world: World) -> None:
    shutil.rmtree(world.lake)
    with pytest.raises(SinkError, match="emptied on purpose") as refused:
        world.run(2)
    told = str(refused.value).partition("make the folder ")[2].partition(";")[0]
    Path(told).mkdir(parents=True)
    world.run(2)
    assert world.table() == {2: [2]}


def test_so_it_is_with_tables_of_a_path_catalog_and_with_intervals(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path)
    world.options["sink"] = TableSink(
        PathCatalog(str(tmp_path / "tables")), "sales.orders", format="json", mode="append"
    )
    world.land_at(0.5, 1)
    world.backfill(hour(0), 1)
    world.land_at(1.5, 2)
    (tmp_path / "tables").rename(tmp_path / "kept")
    with pytest.raises(SinkError, match="may not be mounted"):
        world.backfill(hour(1), 2)


def test_a_batch_is_not_replayed_into_another_table_than_it_is_in(world: World) -> None:
    older, newer = world.lake, world.root / "newer"
    world.options["sink"] = FileSink(str(newer), format="json")
    world.run(2)
    replay = InlineEngine(transform=lambda _: [{"id": 100}])
    for _ in range(2):
        with pytest.raises(SinkError, match=r"is there\. The pipeline writes to .*newer now"):
            world.run(0, replay, clear_number=1)
    assert replay.jobs == []
    assert world.checkpoint.replays.epochs.lanes() == []
    older.rename(world.root / "moved")
    world.run(0, replay, clear_number=1)
    assert (newer / "lane=live/batch_id=0").is_dir()


def test_a_rewind_takes_batches_out_of_the_table_that_they_are_in(world: World) -> None:
    older, newer = world.lake, world.root / "newer"
    world.options["sink"] = FileSink(str(newer), format="json")
    world.run(2)
    applied(world, lambda drafting: plan_rewind(drafting, lane="live", to=0, drop_output=True))
    assert [path.name for path in sorted((older / "lane=live").iterdir())] == ["batch_id=0"]
    for number in range(3, 6):
        world.run(number)
    assert [path.name for path in sorted((newer / "lane=live").iterdir())] == ["batch_id=1", "batch_id=2"]
