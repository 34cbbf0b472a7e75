"""A table that has lost a batch is missed also where it got the batch by a clear, or lies at another place by now."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from tests.execution.test_lost_in_table import restore, table
from tests.execution.world import World

pytestmark = pytest.mark.slow  # many tables are made by libraries of their own

LOST = r"batch live/1 is committed, and .* does not know it"


def two_batches(world: World, *, backup: bool = False) -> World:
    """Batches 0 and 1, and data for the next; a backup of the Delta table may be made after the first."""
    for number in (0, 1):
        world.land(number)
        world.run(number)
        if number == 0 and backup:
            shutil.copytree(world.lake, world.root / "backup")
    world.land(2)
    return world


@pytest.mark.parametrize("named", ["beside another", "in the place of another"])
def test_what_a_table_got_by_clears_is_missed_there(tmp_path: Path, named: str) -> None:
    """The batch was first published to a table that the pipeline named when this one was not there yet."""
    orders, lake = FileSink(str(tmp_path / "orders"), format="json"), DeltaSink(str(tmp_path / "lake"))
    world = two_batches(World(tmp_path, sink=orders))
    world.options["sink"] = Sinks({"orders": orders, "lake": lake}) if named == "beside another" else lake
    if named == "in the place of another":
        shutil.rmtree(tmp_path / "orders" / "lane=live")
    for number in (0, 1):
        world.run(number, clear_number=1)
        if number == 0:
            shutil.copytree(world.lake, tmp_path / "backup")
    assert table(world) == {0: [0], 1: [1]}
    restore(world)
    with pytest.raises(SinkError, match=LOST):
        world.run(2)
    world.run(1, clear_number=2)
    world.run(2, try_number=2)
    assert table(world) == {0: [0], 1: [1], 2: [2]}


def test_what_a_backup_lacks_is_missed_at_the_path_that_it_was_put_to(tmp_path: Path) -> None:
    """By its id it is the table that the batch was published to, at the path of before."""
    world = two_batches(World(tmp_path, sink=DeltaSink(str(tmp_path / "lake"))), backup=True)
    shutil.rmtree(world.lake)
    world.lake = tmp_path / "backup"
    world.options["sink"] = DeltaSink(str(world.lake))
    with pytest.raises(SinkError, match=LOST):
        world.run(2)
    world.run(1, clear_number=1)
    world.run(2, try_number=2)
    assert table(world) == {0: [0], 1: [1], 2: [2]}


def test_nor_is_a_backup_gone_on_with_while_the_table_itself_has_more(tmp_path: Path) -> None:
    world = two_batches(World(tmp_path, sink=DeltaSink(str(tmp_path / "lake"))), backup=True)
    world.options["sink"] = DeltaSink(str(tmp_path / "backup"))
    with pytest.raises(SinkError, match=LOST):
        world.run(2)
    with pytest.raises(SinkError, match=r"batch live/1 was published to .*lake, and is there"):
        world.run(1, clear_number=1)
    world.options["sink"] = DeltaSink(str(world.lake))
    world.run(2, try_number=2)
    assert table(world) == {0: [0], 1: [1], 2: [2]}
